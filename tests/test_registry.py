"""The registry: legal defaults for every GPU, refusals in one sentence, versions found by name."""

import itertools

import pytest
import torch

from kernels import registry
from kernels.architecture import ARCHITECTURES, architecture
from kernels.kernel import require_layout
from kernels.problem import HEAD_DIMS, AttentionProblem, Precision, TileConfig
from kernels.registry import OUR_VERSIONS, PEERS, VERSIONS, Refused, default_tiles, refuse

TILES = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2)
PROBLEM = AttentionProblem(seq_len_q=256, seq_len_kv=256, head_dim=64)
FP8 = Precision(fp8=True)


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_defaults_are_legal_for_every_problem(capability):
    arch = ARCHITECTURES[capability]
    for head_dim, seq_len, causal in itertools.product(HEAD_DIMS, (1, 1000, 4096, 16384), (False, True)):
        problem = AttentionProblem(seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=head_dim, causal=causal)
        for name, precision, order in itertools.product(("v1", "v2", "v3"), (Precision(), FP8), ("query", "key")):
            tiles = default_tiles(name, problem, precision, arch, order)
            assert tiles.loop_order == order
            if name == "v3" and precision.fp8 and arch.fp8 and head_dim >= 32 and order == "query":
                refuse(name, problem, precision, tiles, arch)


def test_versions_without_tiles_have_no_default():
    assert default_tiles("native", PROBLEM, Precision(), ARCHITECTURES[90]) is None


@pytest.mark.parametrize(
    ("name", "problem", "precision", "tiles", "capability", "sentence"),
    [
        ("v2", PROBLEM, FP8, TILES, 90, "FP8 is not possible with v2: only v3"),
        ("flex", PROBLEM, FP8, None, 90, "FP8 is not possible with flex: only v3"),
        (
            "v3", PROBLEM, Precision(fp8=True, fp8_scale="head"), TILES, 90,
            "fp8_scale = head is not possible with v3: it can be token or block; FA3 has a scale a head.",
        ),
        ("v3", PROBLEM, FP8, TILES, 86, "FP8 is not possible on sm_86 (Ampere): its matrix units take e4m3 from sm_89"),
        ("v3", PROBLEM.model_copy(update={"head_dim": 16}), FP8, TILES, 90, "head_dim = 16 is not possible with FP8"),
        ("v3", PROBLEM, FP8, TILES.model_copy(update={"block_n": 16}), 90, "BLOCK_N = 16 is not possible with FP8"),
        ("v2", PROBLEM, Precision(), TILES.model_copy(update={"loop_order": "key"}), 90, "only v1 has Algorithm 1's"),
        ("v2", PROBLEM, Precision(), None, 90, "v2 needs block_m, block_n, num_warps and num_stages."),
        ("sdpa-cudnn", PROBLEM, Precision(), None, None, "sdpa-cudnn is not possible in the interpreter"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_one_sentence(name, problem, precision, tiles, capability, sentence):
    with pytest.raises(Refused) as refusal:
        refuse(name, problem, precision, tiles, None if capability is None else ARCHITECTURES[capability])
    assert sentence in refusal.value.sentence
    assert "\n" not in refusal.value.sentence


@pytest.mark.parametrize("name", [name for name in OUR_VERSIONS if VERSIONS[name].has_tiles and name != "v3-hopper"])
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"block_m": 192}, "BLOCK_M = 192 is not possible with {}: it can be 16, 32, 64, 128, 256 or 512."),
        ({"num_warps": 12}, "num_warps = 12 is not possible with {}: it can be 1, 2, 4, 8 or 16."),
    ],
)
@pytest.mark.parametrize("arch", [None, ARCHITECTURES[90]])
def test_three_warpgroups_are_refused_where_tiles_are_powers_of_two_and_come_with_a_cure(name, fields, sentence, arch):
    with pytest.raises(Refused) as refusal:
        refuse(name, PROBLEM, Precision(), TILES.model_copy(update=fields), arch)
    assert refusal.value.sentence == sentence.format(name)
    refuse(name, PROBLEM, Precision(), refusal.value.cure, arch)


def test_too_narrow_fp8_tiles_come_with_a_cure():
    narrow = TILES.model_copy(update={"block_n": 16})
    with pytest.raises(Refused) as refusal:
        refuse("v3", PROBLEM, FP8, narrow, None)
    refuse("v3", PROBLEM, FP8, refusal.value.cure, None)


@pytest.mark.parametrize("fields", [{"block_m": 48}, {"block_n": 1024}, {"num_warps": 3}, {"num_stages": 0}])
def test_a_tile_size_that_is_not_possible_is_named_with_what_is(fields):
    (name, value), *_ = fields.items()
    shown = {"block_m": "BLOCK_M", "block_n": "BLOCK_N"}.get(name, name)
    with pytest.raises(ValueError, match=rf"{shown} = {value} is not possible: it can be .* or "):
        TileConfig(**{**TILES.model_dump(), **fields})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"head_dim": 48}, "head_dim = 48 is not possible: it can be 16, 32, 64, 80, 96, 128 or 256."),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads = 3 is not possible: num_heads = 4 must be a multiple of it."),
        ({"seq_len_q": 0}, "seq_len_q = 0 is not possible"),
        ({"batch": 0}, "batch = 0 is not possible"),
    ],
)
def test_a_problem_that_is_not_possible_is_named(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        AttentionProblem(**{"seq_len_q": 64, "seq_len_kv": 64, **fields})


def test_unknown_names_and_old_gpus_are_named():
    with pytest.raises(ValueError, match="kernel = v9 is not known: it can be native, v1, v2, v3"):
        registry.load("v9")
    with pytest.raises(ValueError, match="sm_75 is not supported"):
        architecture(75)
    assert architecture(103).capability == 100


def test_ours_and_peers_are_all_there_is():
    assert set(OUR_VERSIONS) | set(PEERS) == set(VERSIONS)
    assert all(VERSIONS[name].ideas for name in ("v1", "v2", "v3"))
    assert registry.load("sdpa-cudnn").prepare is not None


def test_causal_work_is_counted_as_the_papers_do():
    full = AttentionProblem(batch=2, num_heads=4, num_kv_heads=2, seq_len_q=100, seq_len_kv=100, head_dim=64)
    assert full.flops == 4 * 2 * 4 * 100 * 100 * 64
    causal = full.model_copy(update={"causal": True})
    assert causal.flops == full.flops / 2
    longer = causal.model_copy(update={"seq_len_kv": 300})
    # Query i of 100 sees 200 + i + 1 of 300 keys, a trapezium of mean 250.
    assert longer.visible_pairs == 100 * 250


def test_a_layout_that_is_not_the_problems_is_refused():
    good = torch.empty(1, 16, 256, 64)
    require_layout(PROBLEM, good, good, good)
    with pytest.raises(ValueError, match=r"k has shape \(1, 16, 255, 64\), the problem asks for \(1, 16, 256, 64\)"):
        require_layout(PROBLEM, good, good[:, :, 1:], good)
    with pytest.raises(ValueError, match="v is not contiguous"):
        require_layout(PROBLEM, good, good, torch.empty(1, 256, 16, 64).transpose(1, 2))
