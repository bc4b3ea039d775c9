"""Every backward's default tiles, compiled for every supported GPU on a machine that needs none: they fit and do not spill,
but for Hopper's, which were chosen by time: there some addresses are kept in memory, and nothing of a tile."""

import pytest
import torch

from kernels.architecture import ARCHITECTURES
from kernels.kernel import TORCH_DTYPES, AttentionOutput
from kernels.launch import CompileOnly
from kernels.problem import AttentionProblem, Precision
from kernels.registry import default_backward_tiles, load_backward
from profiling.compile_report import report_of
from profiling.records import CompileReport
from tests.sass import instructions, loops

OURS = ("v1", "v2", "v3")
SEQ_LENS = {"long": 16384, "ragged": 16400}


def compiled(
    name: str, capability: int, head_dim: int, seq_len: int, causal: bool = True, num_kv_heads: int = 4, dtype: str = "bf16"
) -> CompileOnly:
    """What a backward with its default tiles would launch; delta is given, as its kernel has no tiles to choose."""
    problem = AttentionProblem(
        num_heads=16, num_kv_heads=num_kv_heads, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=head_dim, causal=causal
    )
    query, key = (
        torch.empty((1, heads, seq_len, head_dim), dtype=TORCH_DTYPES[dtype], device="meta") for heads in (16, num_kv_heads)
    )
    lse = torch.empty(query.shape[:-1], device="meta")
    backward, launch = load_backward(name, problem), CompileOnly(capability)
    tiles = default_backward_tiles(name, problem, Precision(dtype=dtype), ARCHITECTURES[capability])
    backward.backward(backward.prepare(query, key, key), AttentionOutput(query, lse), query, problem, tiles, launch, lse)
    return launch


def reports(launch: CompileOnly) -> list[CompileReport]:
    arch = ARCHITECTURES[launch.capability]
    return [report_of(name, one, arch, 0.0) for name, one in launch.compiled.items()]


def assert_fits_without_spills(launch: CompileOnly, chosen_by_time: bool) -> None:
    for report in reports(launch):
        if chosen_by_time:
            assert_nothing_of_a_tile_is_spilled(report.kernel, launch)
        else:
            assert report.spill_bytes == 0, report
        assert report.shared_memory_bytes <= report.shared_memory_limit_bytes, report
        assert report.programs_per_sm >= 1, report
        assert report.counts["matrix products"] > 0, f"no matrix units in {report}"


def assert_nothing_of_a_tile_is_spilled(name: str, launch: CompileOnly) -> None:
    """P of a tile alone would be 32 a thread and way, of a loop over whole tiles of 300 to 630 instructions."""
    found = loops(instructions(launch.compiled[name].asm["cubin"]))
    body = next(body for body in found if any(text.startswith("HGMMA") for text in body))
    local = sum(text.startswith(("STL", "LDL")) for text in body)
    assert local <= 0.02 * len(body), f"{name}: {local} of {len(body)}"


def by_time(name: str, capability: int) -> bool:
    return capability == 90 and name != "v1"


# Every version on Hopper and where it is cramped; the long run has every GPU, head_dim and kind of end.
QUICK = {("v1", 90, 64), ("v1", 80, 128), ("v2", 90, 128), ("v2", 80, 64), ("v2", 120, 128), ("v3", 90, 64), ("v3", 100, 128)}
EVERYWHERE = [
    pytest.param(name, capability, head_dim, marks=() if (name, capability, head_dim) in QUICK else pytest.mark.long)
    for name in OURS
    for head_dim in (64, 128)
    for capability in ARCHITECTURES
]


@pytest.mark.parametrize(("name", "capability", "head_dim"), EVERYWHERE)
def test_default_tiles_fit_without_spills(name, capability, head_dim):
    """A ragged end, the diagonal and grouped heads together need the most registers."""
    assert_fits_without_spills(compiled(name, capability, head_dim, SEQ_LENS["ragged"]), by_time(name, capability))


@pytest.mark.long
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 128, 256])
@pytest.mark.parametrize(("length", "causal", "num_kv_heads"), [("long", False, 16), ("long", True, 16), ("ragged", True, 4)])
def test_default_tiles_fit_without_spills_everywhere(name, capability, head_dim, length, causal, num_kv_heads):
    found = compiled(name, capability, head_dim, SEQ_LENS[length], causal=causal, num_kv_heads=num_kv_heads, dtype="fp16")
    assert_fits_without_spills(found, by_time(name, capability))


def test_on_hopper_p_and_ds_stay_in_registers_and_products_run_back_to_back():
    """v3: each loop over whole tiles waits twice for its products, and writes nothing to shared memory."""
    launch = compiled("v3", 90, 128, SEQ_LENS["long"], causal=False, num_kv_heads=16)
    by_name = {name: instructions(one.asm["cubin"]) for name, one in launch.compiled.items()}
    for name, code in by_name.items():
        body = next(body for body in loops(code) if any(text.startswith("HGMMA") for text in body))
        counted = {word: sum(text.startswith(word) for text in body) for word in ("WARPGROUP.DEPBAR", "STS", "LDSM", "UTMALDG")}
        assert counted == {"WARPGROUP.DEPBAR": 2, "STS": 0, "LDSM": 0, "UTMALDG": 2}, f"{name}: {counted}"


def test_older_gpus_load_tiles_by_asynchronous_copies():
    for report in reports(compiled("v3", 89, 64, SEQ_LENS["long"], causal=False)):
        assert report.counts["asynchronous copies by address"] > 0
        assert "tile copies by the copy engine" not in report.counts
