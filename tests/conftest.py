"""What several test files share."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling.records import Accuracy
from tests.postgres_server import postgres, store_url  # noqa: F401  (fixtures)

ROOT = Path(__file__).resolve().parent.parent
# Compiling for a GPU and interpreting exclude each other within a process; the tests' own process compiles.
os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture(scope="session")
def interpreted() -> Iterator[Callable[..., Accuracy]]:
    """interpreted(kernel, problem, precision, tiles, ...) runs a kernel in Triton's interpreter and checks its output."""
    from tests.interpreted_attention import Question

    child = subprocess.Popen(
        [sys.executable, "-m", "tests.interpreted_attention"], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def run(
        kernel: str,
        problem: AttentionProblem,
        precision: Precision,
        tiles: TileConfig | None,
        **more: bool,
    ) -> Accuracy:
        question = Question(kernel=kernel, problem=problem, precision=precision, tiles=tiles, **more)
        child.stdin.write(question.model_dump_json() + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        assert line, f"the interpreter's process died on {question}"
        return Accuracy.model_validate_json(line)

    yield run
    child.stdin.close()
    child.wait(60)
