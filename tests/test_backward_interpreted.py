"""Every version's backward in Triton's interpreter: no further from float64 than 1.5 times its roundings."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from kernels.problem import AttentionProblem, BackwardTiles, TileConfig
from kernels.registry import backward_of
from tests.conftest import ROOT
from tests.interpreted_backward import Answer, Question
from tests.test_kernels_interpreted import PROBLEMS, SMALL

LOW = TileConfig(block_m=16, block_n=32, num_warps=4, num_stages=2)
NARROW = TileConfig(block_m=32, block_n=16, num_warps=4, num_stages=1)
TALL = TileConfig(block_m=64, block_n=32, num_warps=4, num_stages=3)
WIDE = TileConfig(block_m=32, block_n=64, num_warps=4, num_stages=2)

KINDS = {
    "v1": ("v1", {}),
    "v2": ("v2", {}),
    "v3": ("v3", {}),
    "v3 by address": ("v3", {"has_tma": False}),
}
# One of each kind of end, in the short run; the others are all in the long one.
QUICK = ("one token", "one query", "one short of a tile", "queries that see nothing", "more queries")

Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """ask(kind, problem, dkdv, dq, ...) runs a forward and its backward in Triton's interpreter."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.interpreted_backward"], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def run(kind: str, problem: AttentionProblem, dkdv: TileConfig, dq: TileConfig, **more: object) -> Answer:
        kernel, of_kind = KINDS[kind]
        question = Question(
            kernel=kernel, problem=problem, tiles=SMALL,
            backward_tiles=BackwardTiles(dkdv=dkdv, dq=dq if backward_of(kernel, problem).dq_apart else None),
            **of_kind, **more,
        )  # fmt: skip
        child.stdin.write(question.model_dump_json() + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        assert line, f"the interpreter's process died on {question}"
        return Answer.model_validate_json(line)

    yield run
    child.stdin.close()
    child.wait(60)


def assert_right(answer: Answer) -> None:
    assert answer.non_finite == 0
    assert max(answer.shares) <= 1.0, answer
    assert answer.repeats, "a second launch gave other bits"


def problem(**fields: object) -> AttentionProblem:
    return AttentionProblem(**{"batch": 1, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, **fields})


SHAPES = [pytest.param(shape, marks=() if shape in QUICK else pytest.mark.long) for shape in PROBLEMS]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_right_on_every_shape(ask, kind, shape):
    assert_right(ask(kind, problem(**PROBLEMS[shape]), NARROW, LOW))


@pytest.mark.parametrize("shape", ["more keys", "queries that see nothing"])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_in_float32(ask, kind, shape):
    assert_right(ask(kind, problem(**PROBLEMS[shape]), NARROW, LOW, dtype="fp32"))


@pytest.mark.long
@pytest.mark.parametrize("shape", PROBLEMS)
@pytest.mark.parametrize("kind", KINDS)
def test_right_on_every_shape_in_fp16_with_two_batches(ask, kind, shape):
    assert_right(ask(kind, problem(**PROBLEMS[shape], batch=2), TALL, WIDE, dtype="fp16"))


HEAD_DIMS = [pytest.param(dim, marks=pytest.mark.long if dim in (64, 128, 256) else ()) for dim in (16, 64, 80, 96, 128, 256)]


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_right_on_every_head_dim(ask, kind, head_dim):
    shape = problem(seq_len_q=50, seq_len_kv=70, num_heads=2, num_kv_heads=1, head_dim=head_dim, causal=True)
    assert_right(ask(kind, shape, TALL, WIDE, dtype="fp16"))


@pytest.mark.parametrize("kind", KINDS)
def test_two_batches_and_a_head_full_of_nan_beside(ask, kind):
    shape = problem(batch=2, seq_len_q=40, seq_len_kv=41, num_heads=2, num_kv_heads=1)
    assert_right(ask(kind, shape, NARROW, LOW, nan_elsewhere=True))


@pytest.mark.parametrize("kind", ["v1", "v2", "v3"])
def test_autograd_gives_the_same_bits(ask, kind):
    assert_right(ask(kind, problem(seq_len_q=17, seq_len_kv=20, causal=True), NARROW, LOW, by_autograd=True))


@pytest.mark.parametrize(
    ("kind", "fault"), [("v1", "out"), ("v1", "lse"), ("v2", "delta"), ("v2", "lse"), ("v3", "out"), ("v3 by address", "lse")]
)
def test_a_spoilt_intermediate_does_not_pass(ask, kind, fault):
    """The bound is tight enough to see 5 % of delta or O, or 2 % of P."""
    answer = ask(kind, problem(seq_len_q=33, seq_len_kv=40, causal=True), NARROW, LOW, fault=fault)
    assert max(answer.shares) > 1.0, answer
