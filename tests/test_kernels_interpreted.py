"""Every version in Triton's interpreter against the float64 reference: small problems of every awkward kind."""

import pytest

from kernels.problem import AttentionProblem, Precision, TileConfig

SMALL = TileConfig(block_m=32, block_n=32, num_warps=4, num_stages=2)
WIDE = TileConfig(block_m=16, block_n=64, num_warps=4, num_stages=1)
TALL = TileConfig(block_m=64, block_n=32, num_warps=4, num_stages=3)

KINDS = {
    "native": ("native", {}, None),
    "v1": ("v1", {}, "query"),
    "v1 key-outer": ("v1", {}, "key"),
    "v2": ("v2", {}, "query"),
    "v3": ("v3", {}, "query"),
    "v3 by address": ("v3", {"has_tma": False}, "query"),
}
FP8_KINDS = {"v3": {}, "v3 by address": {"has_tma": False}}

PROBLEMS = {
    "one token": {"seq_len_q": 1, "seq_len_kv": 1, "causal": True},
    "one query": {"seq_len_q": 1, "seq_len_kv": 77, "causal": True},
    "whole tiles": {"seq_len_q": 64, "seq_len_kv": 64, "causal": True},
    "one short of a tile": {"seq_len_q": 63, "seq_len_kv": 63, "causal": True},
    "one past a tile": {"seq_len_q": 65, "seq_len_kv": 65},
    "more keys": {"seq_len_q": 40, "seq_len_kv": 100, "causal": True},
    "queries that see nothing": {"seq_len_q": 100, "seq_len_kv": 40, "causal": True},
    "more queries": {"seq_len_q": 70, "seq_len_kv": 33},
}
FEW_PROGRAMS = ("one token", "one query", "whole tiles")


def problem(**fields) -> AttentionProblem:
    return AttentionProblem(**{"batch": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, **fields})


def tiles_of(order: str | None, tiles: TileConfig) -> TileConfig | None:
    return None if order is None else tiles.model_copy(update={"loop_order": order})


# The interpreter's time is that of its programs, so the short run gives a batch to what has few of them.
SHAPES = [
    pytest.param(shape, batch, marks=pytest.mark.long if batch == 2 and shape not in FEW_PROGRAMS else ())
    for shape in PROBLEMS
    for batch in ((2,) if shape in FEW_PROGRAMS else (1, 2))
]


@pytest.mark.parametrize(("shape", "batch"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_right_on_every_shape(interpreted, kind, shape, batch):
    kernel, more, order = KINDS[kind]
    asked = problem(**PROBLEMS[shape], batch=batch)
    for dtype, tiles in (("bf16", SMALL), ("fp16", WIDE)):
        accuracy = interpreted(kernel, asked, Precision(dtype=dtype), tiles_of(order, tiles), **more)
        assert accuracy.passed, f"{dtype}: {accuracy}"
        assert accuracy.lse_max_abs_error is not None


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_right_on_every_head_dim(interpreted, kind, head_dim):
    kernel, more, order = KINDS[kind]
    shape = problem(seq_len_q=50, seq_len_kv=70, head_dim=head_dim, causal=True, batch=1)
    accuracy = interpreted(kernel, shape, Precision(), tiles_of(order, TALL), **more)
    assert accuracy.passed, accuracy


@pytest.mark.parametrize(("shape", "batch"), SHAPES)
@pytest.mark.parametrize("kind", FP8_KINDS)
def test_fp8_right_on_every_shape(interpreted, kind, shape, batch):
    for scale, smooth_k in (("token", True), ("block", False)):
        precision = Precision(fp8=True, fp8_scale=scale, smooth_k=smooth_k)
        accuracy = interpreted("v3", problem(**PROBLEMS[shape], batch=batch), precision, SMALL, **FP8_KINDS[kind])
        assert accuracy.passed, f"{scale}: {accuracy}"
        assert accuracy.end_to_end_relative_error is not None


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_fp8_right_on_every_head_dim(interpreted, head_dim):
    shape = problem(seq_len_q=50, seq_len_kv=70, head_dim=head_dim, causal=True, batch=1)
    accuracy = interpreted("v3", shape, Precision(dtype="fp16", fp8=True), TALL)
    assert accuracy.passed, accuracy


# A grid of more programs than blocks, and one that leaves some a block less than others.
@pytest.mark.parametrize(("order", "num_programs"), [("natural", None), ("zigzag", None), ("zigzag", 3), ("heaviest", 1000)])
@pytest.mark.parametrize("kind", ["v2", "v3", "v3 by address", "v3 FP8"])
def test_right_in_every_order_and_in_persistent_grids(interpreted, kind, order, num_programs):
    kernel, more = ("v3", {}) if kind == "v3 FP8" else KINDS[kind][:2]
    shape = problem(seq_len_q=40, seq_len_kv=50, batch=1, causal=True)
    tiles = SMALL.model_copy(update={"block_m": 16, "block_order": order, "num_programs": num_programs})
    accuracy = interpreted(kernel, shape, Precision(fp8=kind == "v3 FP8"), tiles, **more)
    assert accuracy.passed, accuracy


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "native"])
def test_a_head_full_of_nan_stays_in_its_head(interpreted, kind):
    kernel, more, order = KINDS[kind]
    shape = problem(seq_len_q=40, seq_len_kv=41, num_heads=2)
    accuracy = interpreted(kernel, shape, Precision(), tiles_of(order, SMALL), nan_elsewhere=True, **more)
    assert accuracy.passed, accuracy


@pytest.mark.parametrize("kind", FP8_KINDS)
def test_fp8_lets_no_nan_out_of_its_head(interpreted, kind):
    shape = problem(seq_len_q=40, seq_len_kv=41, num_heads=2)
    accuracy = interpreted("v3", shape, Precision(fp8=True), SMALL, nan_elsewhere=True, **FP8_KINDS[kind])
    assert accuracy.non_finite == 0
