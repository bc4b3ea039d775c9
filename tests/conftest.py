"""What several test files share."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling.records import Accuracy
from tests.postgres_server import postgres, store_url  # noqa: F401  (fixtures)

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

ROOT = Path(__file__).resolve().parent.parent
# Compiling for a GPU and interpreting exclude each other within a process; the tests' own process compiles.
os.environ.pop("TRITON_INTERPRET", None)


# What takes longest begins first, so that two workers end together; how many tests a file has says little of that.
LONGEST_FIRST = (
    "hostile_text_in_browser", "kernels_interpreted", "snapshots_in_browser", "runner_contract", "job_queue",
    "player_in_browser", "kernels_compiled", "run_page_in_browser", "trace_interpreted", "the_story_in_browser",
    "trace_compiled", "schedule_in_browser", "sweep_in_browser", "store_battery", "store", "snapshot", "worker",
    "html_page_in_browser", "html_page", "blocks_in_browser", "compiler_in_browser", "article_in_browser", "lanes_in_browser",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first."""
    places = {f"test_{name}": place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "Scheduling":
    """A file's tests run in one worker: they share servers, child processes and compiled kernels. A group's do too."""
    from xdist.scheduler import LoadGroupScheduling

    class ByFileOrGroup(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).split("::")[0]

    config.option.loadscopereorder = False  # the order is that of LONGEST_FIRST
    return ByFileOrGroup(config, log)


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
