"""The Hopper kernel without a GPU: who works on what, against a mask written out; and what ptxas made of the loop."""

import itertools
import re
from collections import Counter
from functools import cache

import pytest
import torch

from kernels import flash_v3_hopper, hopper
from kernels.architecture import ARCHITECTURES
from kernels.block_order import DEALT_OVERHEAD_KEYS
from kernels.default_tiles import HOPPER_TILES
from kernels.kernel import TORCH_DTYPES, Operands
from kernels.launch import CompileOnly
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import Refused, default_tiles, ours_on, refuse
from tests.sass import instructions, loops

HOPPER = ARCHITECTURES[90]
PROBLEMS = (
    AttentionProblem(batch=2, num_heads=4, num_kv_heads=2, seq_len_q=1000, seq_len_kv=1000, causal=True),
    AttentionProblem(batch=2, num_heads=4, num_kv_heads=2, seq_len_q=1000, seq_len_kv=1000),
    AttentionProblem(num_heads=3, num_kv_heads=1, seq_len_q=257, seq_len_kv=130, causal=True),
    AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=64, seq_len_kv=1000, causal=True),
    AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=1, seq_len_kv=1, causal=True),
    AttentionProblem(num_heads=2, num_kv_heads=2, seq_len_q=512, seq_len_kv=512, causal=True),
)


def tiles_of(block_m: int, block_n: int) -> TileConfig:
    return TileConfig(block_m=block_m, block_n=block_n, num_warps=block_m // 16, num_stages=2)


def visible(problem: AttentionProblem) -> torch.Tensor:
    """(seq_len_q, seq_len_kv): whether a query sees a key."""
    rows, keys = torch.arange(problem.seq_len_q)[:, None], torch.arange(problem.seq_len_kv)[None, :]
    seen = keys <= rows + (problem.seq_len_kv - problem.seq_len_q)
    return seen if problem.causal else torch.ones_like(seen)


# Who works on what


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.title)
@pytest.mark.parametrize("blocks", [(128, 128), (128, 64), (192, 128), (256, 64)])
def test_each_tile_is_dealt_once_with_the_keys_that_its_rows_see(problem, blocks):
    tiles, mask = tiles_of(*blocks), visible(problem)
    work = hopper.work_of(problem, tiles, 5, torch.device("cpu"))
    dealt = torch.cat([row[1 : 1 + int(row[0, 0])] for row in work])
    heads, blocks_a_head = problem.batch * problem.num_heads, -(-problem.seq_len_q // tiles.block_m)
    assert sorted(map(tuple, dealt[:, [0, 2]].tolist())) == [
        (head, block * tiles.block_m) for head in range(heads) for block in range(blocks_a_head)
    ]
    for head, kv_head, first_row, key_tiles, unmasked in dealt.tolist():
        batch, query_head = divmod(head, problem.num_heads)
        sharing = problem.num_heads // problem.num_kv_heads
        assert kv_head == batch * problem.num_kv_heads + query_head // sharing
        seen = mask[first_row : first_row + tiles.block_m]
        last = int(seen.any(dim=0).nonzero().max()) if seen.any() else 0
        assert key_tiles == last // tiles.block_n + 1
        whole = unmasked * tiles.block_n
        assert unmasked < key_tiles
        assert seen[:, :whole].all()
        assert whole <= problem.seq_len_kv
        # One more than these would need the mask, or is the last, which is masked in any case.
        one_more = seen[:, whole : whole + tiles.block_n]
        assert unmasked == key_tiles - 1 or one_more.shape[1] < tiles.block_n or not one_more.all()


def test_no_program_has_more_than_one_tile_over_another():
    problem, tiles = PROBLEMS[0], tiles_of(128, 64)
    work = hopper.work_of(problem, tiles, 5, torch.device("cpu"))
    costs = [int((row[1 : 1 + int(row[0, 0]), 3] * tiles.block_n + DEALT_OVERHEAD_KEYS).sum()) for row in work]
    heaviest = problem.seq_len_kv // tiles.block_n * tiles.block_n + tiles.block_n + DEALT_OVERHEAD_KEYS
    assert max(costs) - min(costs) <= heaviest


def test_too_many_tiles_to_deal_out_have_a_program_each(monkeypatch):
    monkeypatch.setattr(hopper, "_MOST_DEALT_TILES", 10)
    problem, tiles = PROBLEMS[0].model_copy(update={"batch": 3}), tiles_of(128, 64)
    work = hopper.work_of(problem, tiles, 5, torch.device("cpu"))
    queue = hopper.queue_of(problem, tiles)
    assert queue.shape == (3 * 4 * 8, 5)
    assert torch.equal(work[:, 0, 0], torch.ones(len(queue), dtype=torch.int32))
    assert torch.equal(work[:, 1], queue.to(torch.int32))


# What ptxas made of it


@cache
def compiled(head_dim: int, causal: bool, seq_len: int, dtype: str = "bf16", blocks: tuple[int, int] | None = None):
    """The kernel, and its instructions as (address, text)."""
    problem = AttentionProblem(batch=8, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=head_dim, causal=causal)
    tiles = tiles_of(*blocks) if blocks else default_tiles("v3-hopper", problem, Precision(), HOPPER)
    q = torch.empty((8, 16, seq_len, head_dim), dtype=TORCH_DTYPES[dtype], device="meta")
    launch = CompileOnly(90)
    flash_v3_hopper.forward(Operands(q, q, q, dtype=q.dtype), problem, tiles, launch)
    kernel = launch.compiled["flash_v3_hopper_forward"]
    return kernel, instructions(kernel.asm["cubin"]), tiles


def unmasked_loops(code: list[tuple[int, str]]) -> list[list[str]]:
    """The innermost loops that wait for a product while another is in flight: one a warpgroup, the tiles without a mask."""
    overlapping = [loop for loop in loops(code) if any(re.match(r"WARPGROUP.DEPBAR.LE gsb0, 0x[12]$", text) for text in loop)]
    return [loop for loop in overlapping if len(loop) < 1.2 * len(overlapping[0])]


# By head_dim, causal and seq_len, at default tiles: two, three and four warpgroups.
CASES = (
    (64, True, 16384),
    (128, True, 1000),
    pytest.param((64, True, 1000), marks=pytest.mark.long),
    pytest.param((256, True, 1000), marks=pytest.mark.long),
    pytest.param((64, False, 4096), marks=pytest.mark.long),
    pytest.param((128, False, 16384), marks=pytest.mark.long),
)


@pytest.mark.parametrize("case", CASES)
def test_it_fits_without_spills_and_without_serialised_products(case):
    kernel, code, tiles = compiled(*case)
    counts = Counter(text.split()[0] for _, text in code)
    assert counts["STL"] + counts["LDL"] == 0
    assert kernel.metadata.shared <= HOPPER.shared_memory_per_block_bytes
    assert kernel.metadata.num_warps >= tiles.num_warps + 1
    # A warpgroup's waits: two in the masked loop, one before it ends, two in the unmasked loop, one at the end. ptxas adds
    # one a product where it serialises them (its warnings C7510 to C7514).
    groups = tiles.block_m // 64
    assert counts["WARPGROUP.DEPBAR.LE"] == groups * (6 if case[1] else 4)
    # The only shuffles are those of the maxima and at the end of the sums: two steps, two rows a thread.
    assert counts["SHFL.BFLY"] == groups * 4 * (4 if case[1] else 3)


@pytest.mark.parametrize("case", CASES)
def test_the_exponentials_are_issued_before_the_wait_for_p_v(case):
    _, code, tiles = compiled(*case)
    unmasked = unmasked_loops(code)
    assert len(unmasked) == tiles.block_m // 64
    for loop in unmasked:
        waits = [place for place, text in enumerate(loop) if text.startswith("WARPGROUP.DEPBAR")]
        under_p_v = sum(text.startswith("MUFU.EX2") for text in loop[waits[0] : waits[1]])
        # Half of them at head_dim 128 and 256, where the other half runs after P V; alpha's may fall on either side.
        assert under_p_v >= tiles.block_n // 2 // (1 if case[0] == 64 else 2) - 2


@pytest.mark.parametrize("case", CASES)
def test_a_score_costs_one_multiply_add_and_one_exponential(case):
    _, code, tiles = compiled(*case)
    for loop in unmasked_loops(code):
        counts = Counter(re.split(r"[ .]", text)[0] + (".EX2" if "EX2" in text else "") for text in loop)
        scores = tiles.block_n // 2  # a thread's, of 64 rows by BLOCK_N
        assert counts["MUFU.EX2"] == scores + 2
        assert scores <= counts["FFMA"] <= scores + 8
        assert scores <= counts["FMNMX"] <= scores + 8
        assert counts["F2FP"] == scores // 2
        # P stays packed from one pass to the next, and nothing waits for the other warps of its warpgroup but once.
        assert counts["PRMT"] == 0
        assert sum(text.startswith("BAR.SYNC") for text in loop) <= 2


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_all_its_tiles_fit_without_spills(head_dim, causal, dtype):
    padded = max(64, AttentionProblem(seq_len_q=1, seq_len_kv=1, head_dim=head_dim).padded_head_dim)
    for blocks in HOPPER_TILES[padded]:
        kernel, code, _ = compiled(head_dim, causal, 1000, dtype, blocks)
        assert not any(text.startswith(("STL", "LDL")) for _, text in code), blocks
        assert kernel.metadata.shared <= HOPPER.shared_memory_per_block_bytes


# Where it can run


def test_defaults_are_possible_for_every_head_dim_on_hopper_alone():
    assert "v3-hopper" in ours_on(HOPPER)
    assert "v3-hopper" not in ours_on(None) + ours_on(ARCHITECTURES[89]) + ours_on(ARCHITECTURES[100])
    for head_dim in (16, 32, 64, 80, 96, 128, 256):
        problem = AttentionProblem(seq_len_q=100, seq_len_kv=100, head_dim=head_dim)
        for batch, seq_len in itertools.product((1, 64), (100, 4096, 16384)):
            more = problem.model_copy(update={"batch": batch, "seq_len_q": seq_len})
            refuse("v3-hopper", more, Precision(), default_tiles("v3-hopper", more, Precision(), HOPPER), HOPPER)


@pytest.mark.parametrize(
    ("seq_len", "causal", "num_heads", "blocks"),
    [
        (4096, False, 32, (192, 128)),
        (4096, True, 32, (256, 64)),
        (16384, True, 32, (192, 128)),
        (1024, False, 64, (256, 64)),
        (16384, False, 1, (128, 128)),
    ],
)
def test_at_head_dim_64_long_problems_have_three_warpgroups_and_few_tiles_two(seq_len, causal, num_heads, blocks):
    problem = AttentionProblem(
        num_heads=num_heads, num_kv_heads=num_heads, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=64, causal=causal
    )
    assert default_tiles("v3-hopper", problem, Precision(), HOPPER) == tiles_of(*blocks)


@pytest.mark.parametrize(
    ("arch", "changed", "fp8", "sentence"),
    [
        (None, {}, False, "v3-hopper is not possible in the interpreter: it is written in Hopper's own instructions."),
        (
            ARCHITECTURES[89],
            {},
            False,
            "v3-hopper is not possible on sm_89 (Ada): it is written in Hopper's instructions, sm_90.",
        ),
        (HOPPER, {"block_m": 64}, False, "64 × 128 is not possible with v3-hopper at head_dim 128: it can be 128 × 128 or"),
        (HOPPER, {"num_warps": 4}, False, "num_warps = 4 is not possible with v3-hopper: BLOCK_M = 128 takes 8"),
        (HOPPER, {"num_stages": 3}, False, "num_stages = 3 is not possible with v3-hopper at head_dim 128: K and V have 2"),
        (HOPPER, {}, True, "fp8_scale = token is not possible with v3-hopper"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_sentence(arch, changed, fp8, sentence):
    problem = AttentionProblem(seq_len_q=100, seq_len_kv=100)
    tiles = default_tiles("v3-hopper", problem, Precision(fp8=fp8), HOPPER).model_copy(update=changed)
    with pytest.raises(Refused) as refusal:
        refuse("v3-hopper", problem, Precision(fp8=fp8), tiles, arch)
    assert sentence in refusal.value.sentence
    assert "\n" not in refusal.value.sentence
