"""Imports point down, app to profiling to kernels, and the app's process holds neither torch nor Triton nor NVML."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_NOT_IMPORT = {
    "kernels": {"profiling", "app", "streamlit", "plotly"},
    "profiling": {"app", "streamlit", "plotly"},
    "app": set(),
}
HEAVY = {"torch", "triton", "pynvml", "ray"}


def imported_by(path: Path) -> set[str]:
    """Every module that a file names in an import, wherever it stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("folder", MAY_NOT_IMPORT)
def test_imports_point_down(folder):
    for path in (ROOT / folder).rglob("*.py"):
        assert not {name.split(".")[0] for name in imported_by(path)} & MAY_NOT_IMPORT[folder], path


def test_versions_do_not_import_each_other():
    begins = ("flash_", "native", "peers", "backward_")
    versions = {path.stem for path in (ROOT / "kernels").glob("*.py") if path.stem.startswith(begins)}
    for name in versions:
        others = {f"kernels.{other}" for other in versions if not name.startswith(other) and not other.startswith(name)}
        assert not imported_by(ROOT / "kernels" / f"{name}.py") & others, name


def found_in_a_fresh_interpreter(statements: str, wanted: set[str]) -> str:
    """Which of the wanted modules are loaded after the statements."""
    script = f"{statements}\nimport sys; print(*sorted({wanted!r} & set(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


def test_the_app_s_process_has_neither_torch_nor_triton_nor_nvml():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "app").rglob("*.py")
        if path.name not in ("__init__.py", "main.py")  # main draws a page when imported: the next test runs it
    ]
    assert modules
    assert (
        found_in_a_fresh_interpreter(f"import importlib\nfor name in {modules!r}: importlib.import_module(name)", HEAVY) == ""
    )


def test_a_drawn_page_has_loaded_neither_torch_nor_triton_nor_nvml():
    draw = "from streamlit.testing.v1 import AppTest\napp = AppTest.from_file('app/main.py', default_timeout=120).run()"
    assert found_in_a_fresh_interpreter(f"{draw}\nassert not app.exception, app.exception", HEAVY) == ""


LIGHT = ("kernels.registry", "profiling.records", "profiling.job_queue", "profiling.devices", "profiling.cli")


def test_what_the_app_and_the_command_line_build_on_is_light():
    assert found_in_a_fresh_interpreter(f"import {', '.join(LIGHT)}", HEAVY | {"streamlit", "plotly"}) == ""
