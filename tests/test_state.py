"""app.state alone names session_state keys and query parameters, and has under one name what its modules hold."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from app import state
from tests import records_for_tests as records

APP = Path(__file__).parents[1] / "app"
MODULES = sorted(path for path in (APP / "state").glob("*.py") if path.stem != "__init__")


def named_by_hand(source: str) -> list[str]:
    """Keys written as literals beside st.session_state or st.query_params."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("st.session_state", "st.query_params"):
            key = node.slice
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("st.session_state.", "st.query_params.")):
            key = node.args[0] if node.args else None
        else:
            continue
        if isinstance(key, ast.Constant):
            found.append(ast.unparse(node))
    return found


def test_no_other_file_names_a_key() -> None:
    others = [path for path in APP.rglob("*.py") if path.parent != APP / "state"]
    assert len(others) > 40
    assert [(path.name, said) for path in others for said in named_by_hand(path.read_text())] == []
    assert len(named_by_hand("st.session_state['a'] = 1; st.query_params.get('b'); st.query_params[KEY]; other.get('c')")) == 2


def test_what_a_module_holds_stands_in_the_package() -> None:
    package = ast.parse((APP / "state" / "__init__.py").read_text())
    told = {alias.name for node in package.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    for path in MODULES:
        tree = ast.parse(path.read_text())
        own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {name for name in own if not name.startswith("_")} <= told, path.name


def test_a_recording_that_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "GALLERY", tmp_path)
    before = records.recording()
    after = before.model_copy(update={"title": "another"})
    for second, one in enumerate((before, after)):
        (tmp_path / "one.json").write_bytes(one.document)
        os.utime(tmp_path / "one.json", ns=(second * 10**9, second * 10**9))
        assert state.recordings()["one"].id == one.id
    assert before.id != after.id
