"""A libnvidia-ml.so without a GPU, made from fake_nvml.c, under the real nvidia-ml-py."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "libnvidia-ml.so.1"


@functools.cache
def library() -> Path:
    """The compiled library; a test that needs it is skipped where there is no C compiler, unless it must not be (CI)."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        assert not os.environ.get("CI"), "there is no C compiler, which the tests of NVML need"
        pytest.skip("there is no C compiler")
    target = Path(tempfile.mkdtemp(prefix="fake-nvml-")) / LIBRARY
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        f"-Wl,-soname,{LIBRARY}",
        "-o",
        str(target),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return target


class FakeNvml:
    """What the library answers; see fake_nvml.c for the lines. name=value for a value, with `of` for a GPU's own."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.file = folder / "nvml.txt"
        self.answer(*lines)

    def answer(self, *lines: str) -> None:
        """From now on so, and all that is not named as it was at first."""
        part = self.file.with_suffix(".part")
        part.write_text("".join(f"{line}\n" for line in lines))
        part.replace(self.file)

    @property
    def environment(self) -> dict[str, str]:
        """For a child process: it loads this library as NVIDIA's."""
        return {"LD_LIBRARY_PATH": str(library().parent), "FAKE_NVML": str(self.file)}

    def load(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        """Put the library under this process's nvidia-ml-py, until the test ends."""
        import pynvml

        loaded = ctypes.CDLL(str(library()))
        loaded.fake_nvml_file(str(self.file).encode())
        monkeypatch.setattr(pynvml, "nvmlLib", loaded)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return self


def hexadecimal(text: bytes) -> str:
    """Text for a line of the library's file."""
    return text.hex()
