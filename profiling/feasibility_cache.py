"""What was compiled, kept on the disk: a file a cell, found by all that the compiler saw.

A folder is of one Triton and one state of the sources; folders that nothing was written to for 30 days are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from pydantic import ValidationError

from kernels.registry import version
from profiling.feasibility import MAY_CHANGE, Cell, Grid, Place
from profiling.whole_file import read_at_most, write_whole

METHOD = 1
"""Raised when a cell is judged otherwise from the same compiler's output."""
_KERNELS = Path(__file__).resolve().parent.parent / "kernels"
_READERS = ("compile_report.py", "occupancy.py")
_KEPT_FOR_S = 30 * 86400.0
_MOST_BYTES = 100_000


def triton_version() -> str | None:
    """The version of the Triton that is installed, which is not imported; None without one."""
    try:
        return version_of("triton")
    except PackageNotFoundError:
        return None


class FeasibilityCache:
    """The kept cells of a grid. folder: where all are kept; in the user's cache folder unless one is given."""

    def __init__(self, grid: Grid, folder: Path | None = None) -> None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "flashscope"
        self._folder = folder or base / "feasibility"
        self._of = self._folder / _state(version(grid.kernel).module.rpartition(".")[2], triton_version())
        self._grid = grid

    def get(self, place: Place) -> Cell | None:
        """What was found of a place; None where nothing is kept, or what cannot be read."""
        try:
            found = Cell.model_validate_json(read_at_most(self._file(place), _MOST_BYTES))
        except (OSError, ValidationError, ValueError):
            return None
        return found if all(getattr(found, name) == getattr(place, name) for name in Place.model_fields) else None

    def put(self, found: Cell) -> None:
        """Keep a cell; where the disk refuses it, it is compiled again another time."""
        try:
            self._of.mkdir(parents=True, exist_ok=True)
            write_whole(self._file(found), found.model_dump_json().encode())
        except OSError:
            pass

    def held(self, places: tuple[Place, ...], again: bool = False) -> dict[Place, Cell]:
        """What is kept of these places; again: without what another try may judge otherwise."""
        found = {place: self.get(place) for place in places}
        return {place: one for place, one in found.items() if one and not (again and one.reason in MAY_CHANGE)}

    def forget_old(self) -> None:
        """Remove what was kept for another Triton or other sources and not written to for 30 days."""
        try:
            old = [one for one in self._folder.iterdir() if time.time() - one.stat().st_mtime > _KEPT_FOR_S]
        except OSError:
            return
        for one in old:
            if one != self._of:
                shutil.rmtree(one, ignore_errors=True)

    def _file(self, place: Place) -> Path:
        grid = self._grid
        asked = grid.model_dump(mode="json", include={"kernel", "problem", "precision", "capability", "loop_order"})
        asked["tiles"] = [getattr(place, name) for name in Place.model_fields]
        return self._of / f"{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]}.json"


def _state(module: str, triton: str | None) -> str:
    """A name for all that decides what is made of a question: Triton, the kernel's sources, how they are read."""
    others = [path for path in _KERNELS.glob("flash_*.py") if not path.stem.startswith(module)]
    files = [path for path in sorted(_KERNELS.glob("*.py")) if path not in others]
    files += [Path(__file__).with_name(name) for name in _READERS]
    times = tuple((str(path), path.stat().st_mtime_ns) for path in files)
    return hashlib.sha256(f"{METHOD} {triton} {_digest(times)}".encode()).hexdigest()[:16]


@lru_cache(maxsize=16)
def _digest(times: tuple[tuple[str, int], ...]) -> str:
    found = hashlib.sha256()
    for path, _ in times:
        found.update(Path(path).read_bytes() + b"\0")
    return found.hexdigest()
