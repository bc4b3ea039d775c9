"""run, test and .ci/run, with a pretended Python that writes down what it was asked to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("run", "test", ".ci/run")
REQUIREMENTS = ("requirements.txt", "requirements-cluster.txt", "requirements-dev.txt")
INSTALLS = [f"-m pip install --disable-pip-version-check -r {name}" for name in REQUIREMENTS]
TOOLS = ("bash", "env", "dirname", "rm", "cat", "cp", "mkdir", "cksum", "uname")

PRETENDED_PYTHON = """#!/bin/bash
case "$*" in
    *version_info*) echo "$VERSION" ;;
    *ensurepip*) exit "${NO_VENV:-0}" ;;
    *hashlib*) cksum <"$3" ;;
    "-m venv --clear .venv") rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/pip ;;
    "-m pip install"*) echo "$*" >>calls; exit "${PIP_FAILS:-0}" ;;
    *) { printf '%s|' "$@"; echo; } >>calls ;;
esac
"""


class Checkout:
    """A folder with the scripts and nothing else, and a PATH with only what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "a checkout", folder / "bin"
        self.root.mkdir()
        self.bin.mkdir()
        for name in ("run", "test", *REQUIREMENTS):
            shutil.copy2(ROOT / name, self.root)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))

    def add_python(self, name: str, version: str) -> None:
        self.add(name, PRETENDED_PYTHON.replace("$VERSION", version))

    def add(self, name: str, script: str = "#!/bin/bash\n") -> None:
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def call(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.root / script, *arguments],
            cwd="/",
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )

    def calls(self) -> list[str]:
        """What Python was asked to do since the last look."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_valid_bash_and_executable(script):
    assert subprocess.run(["bash", "-n", ROOT / script]).returncode == 0
    assert os.access(ROOT / script, os.X_OK)


def test_a_python_that_is_too_old_is_named(checkout):
    checkout.add_python("python3", "3.9")
    checkout.add_python("python3.14", "3.15")
    done = checkout.call("run")
    assert done.returncode == 1
    assert done.stderr == (
        "FlashScope needs Python 3.11 to 3.14, and python3 is 3.9, python3.14 is 3.15: "
        "install one of them, then call this again.\n"
    )
    assert not (checkout.root / ".venv").exists()


def test_no_python_at_all_is_said(checkout):
    done = checkout.call("run")
    assert done.returncode == 1
    assert "there is no python3 here" in done.stderr


def test_a_newer_python_is_found_beside_one_that_is_too_old(checkout):
    checkout.add_python("python3", "3.9")
    checkout.add_python("python3.12", "3.12")
    done = checkout.call("run", "--server.port", "8600")
    assert done.returncode == 0, done.stderr
    assert checkout.calls() == [
        "-m pip install --disable-pip-version-check -r requirements.txt",
        "-m|streamlit|run|app/main.py|--server.port|8600|",
    ]


def test_missing_python3_venv_is_said_with_its_cure(checkout):
    checkout.add_python("python3", "3.11")
    done = checkout.call("run", NO_VENV="1")
    assert done.returncode == 1
    assert "apt install python3-venv (or python3.11-venv)" in done.stderr
    assert checkout.calls() == []


def test_requirements_are_installed_again_only_when_they_changed(checkout):
    checkout.add_python("python3", "3.13")
    install = "-m pip install --disable-pip-version-check -r requirements.txt"
    serve = "-m|streamlit|run|app/main.py|"
    checkout.call("run")
    assert checkout.calls() == [install, serve]
    checkout.call("run")
    assert checkout.calls() == [serve]
    with (checkout.root / "requirements.txt").open("a") as requirements:
        requirements.write("# one more\n")
    checkout.call("run")
    assert checkout.calls() == [install, serve]


def test_a_failed_install_is_tried_again(checkout):
    checkout.add_python("python3", "3.11")
    done = checkout.call("run", PIP_FAILS="1")
    assert done.returncode == 1
    assert "Installing requirements.txt failed" in done.stderr
    assert len(checkout.calls()) == 1
    assert checkout.call("run").returncode == 0
    assert len(checkout.calls()) == 2


def test_a_venv_of_a_python_that_is_gone_is_made_anew(checkout):
    checkout.add_python("python3", "3.11")
    checkout.call("run")
    checkout.calls()
    (checkout.root / ".venv/bin/python").unlink()
    assert checkout.call("run").returncode == 0
    assert len(checkout.calls()) == 2


def test_test_checks_the_style_and_runs_the_short_tests(checkout):
    checkout.add_python("python3", "3.11")
    checkout.add("chromium")
    done = checkout.call("test", "-k", "two words")
    assert done.returncode == 0, done.stderr
    assert checkout.calls() == [
        *INSTALLS,
        "-m|ruff|check|.|",
        "-m|ruff|format|--check|.|",
        "-m|pytest|-n|2|--dist|loadgroup|-m|not long|-k|two words|",
    ]


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_test_installs_a_file_again_when_it_alone_has_changed(checkout, name):
    checkout.add_python("python3", "3.11")
    checkout.add("chromium")
    checkout.call("test")
    checkout.calls()
    with (checkout.root / name).open("a") as requirements:
        requirements.write("# one more\n")
    assert checkout.call("test").returncode == 0
    assert [call for call in checkout.calls() if "pip install" in call] == [
        f"-m pip install --disable-pip-version-check -r {name}"
    ]


def test_what_a_file_includes_is_installed_for_itself():
    lines = [line for name in REQUIREMENTS for line in (ROOT / name).read_text().splitlines()]
    assert {line.removeprefix("-r ") for line in lines if line.startswith("-r ")} <= set(REQUIREMENTS)


def test_test_long_runs_all(checkout):
    checkout.add_python("python3", "3.11")
    checkout.add("chromium")
    assert checkout.call("test", "--long").returncode == 0
    assert checkout.calls()[-1] == "-m|pytest|-n|2|--dist|loadgroup|-m||"


def test_without_chromium_ci_fails_and_a_person_is_told(checkout):
    checkout.add_python("python3", "3.11")
    in_ci = checkout.call("test", CI="true")
    assert in_ci.returncode == 1
    assert checkout.calls() == []
    at_home = checkout.call("test")
    assert at_home.returncode == 0
    assert checkout.calls()[-1] == "-m|pytest|-n|2|--dist|loadgroup|-m|not long and not browser|"
    assert in_ci.stderr.startswith("Chromium is missing, and the browser tests need it: sudo apt install chromium.\n")


def test_every_requirement_is_pinned():
    for name in REQUIREMENTS:
        for line in (ROOT / name).read_text().splitlines():
            assert "==" in line or line.startswith("-r "), line
