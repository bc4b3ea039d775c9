"""Every version's default tiles, compiled for every supported GPU on a machine that needs none: they fit and do not spill."""

import pytest

from kernels.architecture import ARCHITECTURES
from kernels.problem import AttentionProblem, Precision
from kernels.registry import Refused, default_tiles
from profiling.compile_report import compile_reports
from profiling.records import RunRequest

KINDS = {
    "v1": ("v1", "query", False),
    "v1 key-outer": ("v1", "key", False),
    "v2": ("v2", "query", False),
    "v3": ("v3", "query", False),
    "v3 FP8": ("v3", "query", True),
}
# A ragged end and the diagonal together need the most registers.
SEQ_LENS = {"short, ragged": 1000, "long": 16384, "long, ragged": 16400}


def request_for(
    kind: str, capability: int, head_dim: int, seq_len: int, dtype: str = "bf16", causal: bool = True
) -> RunRequest:
    kernel, loop_order, fp8 = KINDS[kind]
    problem = AttentionProblem(seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=head_dim, causal=causal)
    precision = Precision(dtype=dtype, fp8=fp8)
    tiles = default_tiles(kernel, problem, precision, ARCHITECTURES[capability], loop_order)
    return RunRequest(kernel=kernel, problem=problem, precision=precision, tiles=tiles)


# Default tiles that fill the registers to the last one; in a persistent grid 8 to 72 bytes do not fit.
PERSISTENT_SPILLS = {("v3", 80, 128), ("v3", 120, 128), ("v3 FP8", 120, 128), ("v3 FP8", 100, 64)}


def persistent(request: RunRequest) -> RunRequest:
    tiles = request.tiles.model_copy(update={"num_programs": 264, "block_order": "zigzag"})
    return request.model_copy(update={"tiles": tiles})


def assert_fits_without_spills(request: RunRequest, capability: int) -> None:
    for report in compile_reports(request, capability):
        assert report.spill_bytes == 0, f"{request.tiles}: {report}"
        assert report.shared_memory_bytes <= report.shared_memory_limit_bytes, report
        assert report.programs_per_sm >= 1, report
    assert report.counts["matrix products"] > 0, f"no matrix units in {report}"


# Every kind and every GPU at least once: all kinds on Hopper, and where each other GPU is most cramped.
QUICK = {(kind, 90, 128) for kind in KINDS} | {
    ("v2", 80, 128), ("v1 key-outer", 86, 64), ("v2", 86, 128), ("v2", 89, 128), ("v3 FP8", 89, 64), ("v1", 100, 128),
    ("v3", 100, 64), ("v3", 120, 128), ("v3", 80, 64), ("v3 FP8", 80, 64), ("v3 FP8", 86, 128),
}  # fmt: skip
EVERYWHERE = [
    pytest.param(kind, capability, head_dim, marks=() if (kind, capability, head_dim) in QUICK else pytest.mark.long)
    for head_dim in (64, 128)
    for kind in KINDS
    for capability in ARCHITECTURES
]


@pytest.mark.parametrize(("kind", "capability", "head_dim"), EVERYWHERE)
def test_default_tiles_fit_without_spills(kind, capability, head_dim):
    if KINDS[kind][2] and not ARCHITECTURES[capability].fp8:
        with pytest.raises(Refused, match="from sm_89"):
            compile_reports(request_for(kind, capability, head_dim, 1000), capability)
        return
    assert_fits_without_spills(request_for(kind, capability, head_dim, SEQ_LENS["long, ragged"]), capability)


@pytest.mark.long
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", [16, 32, 80, 256])
@pytest.mark.parametrize("length", SEQ_LENS)
def test_default_tiles_fit_without_spills_everywhere(kind, capability, head_dim, length):
    if KINDS[kind][2] and (head_dim == 16 or not ARCHITECTURES[capability].fp8):
        pytest.skip("refused, as tested elsewhere")
    assert_fits_without_spills(request_for(kind, capability, head_dim, SEQ_LENS[length], "fp16", length != "long"), capability)


@pytest.mark.parametrize("kind", ["v2", "v3 FP8"])
def test_persistent_grids_fit_without_spills(kind):
    assert_fits_without_spills(persistent(request_for(kind, 90, 128, SEQ_LENS["long, ragged"])), 90)


@pytest.mark.long
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["v2", "v3", "v3 FP8"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_persistent_grids_fit_without_spills_everywhere(kind, capability, head_dim):
    if KINDS[kind][2] and not ARCHITECTURES[capability].fp8:
        pytest.skip("refused, as tested elsewhere")
    request = persistent(request_for(kind, capability, head_dim, SEQ_LENS["long, ragged"]))
    if (kind, capability, head_dim) in PERSISTENT_SPILLS:
        report = compile_reports(request, capability)[-1]
        assert report.spill_bytes > 0, "no longer spills: take it off the list"
        assert report.programs_per_sm >= 1
    else:
        assert_fits_without_spills(request, capability)


def test_hopper_v3_uses_the_copy_engine_and_older_gpus_do_not():
    hopper = compile_reports(request_for("v3", 90, 64, 1024), 90)[-1].counts
    ada = compile_reports(request_for("v3", 89, 64, 1024), 89)[-1].counts
    assert hopper["tile copies by the copy engine"] > 0
    assert "tile copies by the copy engine" not in ada
    assert ada["asynchronous copies by address"] > 0


def test_hopper_fp8_shuffles_only_for_the_row_reductions():
    request = request_for("v3 FP8", 90, 128, 16384, causal=False)
    shuffles = compile_reports(request, 90)[-1].counts["shuffles"]
    # Two loops (whole and masked tiles), a maximum and a sum, two steps each, over a thread's two rows.
    assert shuffles == 2 * 2 * 2 * 2


def test_too_much_shared_memory_is_refused_with_both_numbers():
    request = request_for("v2", 90, 64, 1024, causal=False)
    wide = {"block_m": 64, "block_n": 256, "num_warps": 8, "num_stages": 6}
    request = request.model_copy(update={"tiles": request.tiles.model_copy(update=wide)})
    # Q takes 64 × 64 × 2 bytes, K and V 256 × 64 × 2 a stage.
    with pytest.raises(Refused, match=r"BLOCK_N = 256 does not fit: .* needs 392 KiB .* gets 227 KiB"):
        compile_reports(request, 90)
