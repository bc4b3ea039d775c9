"""Stamps: what is written of every entry, and that the machine code reads the clock where it should.

The stores run in the interpreter with a counter for a clock; that nothing is moved across a stamp is read off the SASS.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from kernels import block_order
from kernels.architecture import ARCHITECTURES
from kernels.block_order import WHOLE_HEAD, grid_of, order_of
from kernels.launch import CompileOnly
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import default_tiles, load, stamping_lanes
from kernels.stamps import StampBuffers, _smallest_step
from profiling.compile_report import nvidia_tool, report_of
from tests.conftest import ROOT
from tests.stamped_attention import THE_SM, Question

SMALL = TileConfig(block_m=16, block_n=32, num_warps=4, num_stages=2)
KINDS = {
    "v1": ("v1", {}),
    "v1 key-outer": ("v1", {"loop_order": "key"}),
    "v2": ("v2", {}),
    "v2 zigzag": ("v2", {"block_order": "zigzag"}),
    "v2 persistent": ("v2", {"num_programs": 5}),
    "v3 natural": ("v3", {"block_order": "natural"}),
    "v3 FP8 zigzag, persistent": ("v3", {"block_order": "zigzag", "num_programs": 7}),
}
FIELDS = {
    "ragged, causal": {"seq_len_q": 40, "seq_len_kv": 61, "causal": True},
    "rows that see nothing": {"seq_len_q": 40, "seq_len_kv": 22, "causal": True},
}


@pytest.fixture(scope="module")
def child() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.stamped_attention"], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.stdin.close()
    process.wait(60)


@pytest.fixture(scope="module")
def said(child) -> dict[str, str]:
    """What the child found not to be possible."""
    return json.loads(child.stdout.readline())


@pytest.fixture(scope="module")
def stamped(child, said) -> Callable[[Question], dict]:
    def run(question: Question) -> dict:
        child.stdin.write(question.model_dump_json() + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        assert line, f"the interpreter's process died on {question}"
        return {name: np.array(value) for name, value in json.loads(line).items()}

    return run


def computed_tiles(problem: AttentionProblem, tiles: TileConfig, kernel: str, block: int) -> int:
    """Key tiles of a query block, counted one by one: those with a key that a row sees; all of them in v1."""
    key_blocks = -(-problem.seq_len_kv // tiles.block_n)
    if block == WHOLE_HEAD:
        return key_blocks * -(-problem.seq_len_q // tiles.block_m)
    last_row = min((block + 1) * tiles.block_m, problem.seq_len_q) - 1
    last_seen = last_row + problem.seq_len_kv - problem.seq_len_q
    return sum(kernel == "v1" or not problem.causal or first * tiles.block_n <= last_seen for first in range(key_blocks))


@pytest.mark.parametrize(
    ("kind", "shape"), [(kind, "ragged, causal") for kind in KINDS] + [("v2 persistent", "rows that see nothing")]
)
def test_every_entry_is_written_once_and_in_order(stamped, monkeypatch, kind, shape):
    kernel, more = KINDS[kind]
    problem = AttentionProblem(batch=1, num_heads=3, num_kv_heads=1, head_dim=32, **FIELDS[shape])
    tiles, fp8 = SMALL.model_copy(update=more), "FP8" in kind
    found = stamped(Question(kernel=kernel, problem=problem, tiles=tiles, fp8=fp8, section=2))
    assert found["same"]
    assert (found["sm"] == THE_SM).all()
    monkeypatch.setattr(block_order, "_SECTION_BYTES", 2 * 2 * problem.seq_len_kv * 32 * (1 if fp8 else 2))
    order = order_of(problem, tiles, kernel, fp8)
    entries = list(zip(found["head"].tolist(), found["block"].tolist(), strict=True))
    assert entries == sorted(set(map(tuple, order.tolist())))
    assert found["tiles"].tolist() == [computed_tiles(problem, tiles, kernel, block) for _, block in entries]
    # The counter moves by one a reading, two readings an entry.
    assert (found["end_ns"] - found["start_ns"] == 1).all()
    assert sorted(found["start_ns"].tolist()) == list(range(0, 2 * len(order), 2))
    grid = grid_of(problem, tiles)[0] if more.get("num_programs") else len(order)
    index_of = {tuple(entry): index for index, entry in enumerate(order.tolist())}
    assert found["program"].tolist() == [index_of[entry] % grid for entry in entries]
    ran = sorted(range(len(order)), key=lambda index: (index % grid, index // grid))
    assert [entries[place] for place in np.argsort(found["start_ns"])] == [tuple(order[index]) for index in ran]


def test_stamps_are_refused_in_the_interpreter(said):
    sentence = "stamps are not possible in the interpreter: only a GPU has SMs and a clock to read."
    assert said["on"] == said["tick"] == sentence


def test_an_entry_that_was_not_stamped_is_no_result(said):
    assert said["not launched"] == "1 of 1 entries were not stamped: was this launched?"


@pytest.mark.parametrize("name", ["v1", "v2", "v3"])
def test_a_launch_is_traced_or_stamped(said, name):
    assert said[f"both, {name}"] == "trace and stamps in one launch are not possible: launch one after the other."


def test_the_smallest_step_of_the_clock_is_found(said):
    assert said["steps of 32"] == 32
    assert said["stands"] == "%globaltimer did not move in 50 reads."


# The machine code

COMPILED = {
    "v1": ("v1", {}, False),
    "v1 key-outer": ("v1", {"loop_order": "key"}, False),
    "v2": ("v2", {}, False),
    "v2 persistent": ("v2", {"num_programs": 132}, False),
    "v3": ("v3", {}, False),
    "v3 persistent": ("v3", {"num_programs": 132, "block_order": "zigzag"}, False),
    "v3 FP8": ("v3", {}, True),
    "v3 FP8 persistent": ("v3", {"num_programs": 132, "block_order": "natural"}, True),
}
LOADS = ("LDG", "LDGSTS", "UTMALDG")
PRODUCTS = ("HGMMA", "QGMMA", "HMMA", "QMMA", "UTCHMMA", "UTCQMMA", "UTCOMMA")


def compiled_for(kind: str, capability: int, head_dim: int, stamped: bool):
    kernel, more, fp8 = COMPILED[kind]
    problem = AttentionProblem(seq_len_q=16400, seq_len_kv=16400, head_dim=head_dim, causal=True)
    arch, precision, launch = ARCHITECTURES[capability], Precision(fp8=fp8), CompileOnly(capability)
    tiles = default_tiles(kernel, problem, precision, arch, more.get("loop_order", "query")).model_copy(update=more)
    q, k, v = (torch.empty((1, 16, 16400, head_dim), dtype=torch.bfloat16, device="meta") for _ in range(3))
    version = load(kernel)
    stamps = StampBuffers.on("meta", problem, tiles) if stamped else None
    version.forward(version.prepare(q, k, v, precision, launch), problem, tiles, launch, stamps=stamps)
    name, compiled = list(launch.compiled.items())[-1]
    return compiled, report_of(name, compiled, arch, 0.0)


def instructions(compiled) -> list[str]:
    """What is read off SASS here: GLOBALTIMER, and the first word of every other instruction."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        sass = nvidia_tool("nvdisasm", "--print-code", file.name)
    lines = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?(.*);", sass, re.MULTILINE)
    return ["GLOBALTIMER" if "GLOBALTIMER" in line else re.split(r"[. ]", line)[0] for line in lines]


def places(found: list[str], *wanted: str) -> list[int]:
    return [place for place, name in enumerate(found) if name in wanted]


def assert_stamps_enclose_the_work(kind: str, capability: int, head_dim: int) -> None:
    compiled, report = compiled_for(kind, capability, head_dim, stamped=True)
    assert report.spill_bytes == 0, report
    found = instructions(compiled)
    started, ended = places(found, "GLOBALTIMER")
    stores = places(found, "STG")
    of_output, of_stamp = [place for place in stores if place < ended], [place for place in stores if place > ended]
    assert started < min(places(found, *LOADS))
    assert max(places(found, *PRODUCTS)) < max(of_output) < max(places(found[:ended], "BAR")) < ended
    assert len(of_stamp) == 5


@pytest.mark.parametrize(("kind", "capability"), [("v1 key-outer", 80), ("v2 persistent", 90), ("v3 FP8", 90)])
def test_stamps_enclose_the_work(kind, capability):
    assert_stamps_enclose_the_work(kind, capability, 64)


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("kind", COMPILED)
def test_stamps_enclose_the_work_everywhere(kind, capability, head_dim):
    if COMPILED[kind][2] and not ARCHITECTURES[capability].fp8:
        pytest.skip("this GPU has no FP8")
    assert_stamps_enclose_the_work(kind, capability, head_dim)


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("kind", COMPILED)
def test_as_many_stamped_programs_fit_on_an_sm(kind, capability, head_dim):
    if COMPILED[kind][2] and not ARCHITECTURES[capability].fp8:
        pytest.skip("this GPU has no FP8")
    fit = [compiled_for(kind, capability, head_dim, stamped)[1].programs_per_sm for stamped in (False, True)]
    assert fit[0] == fit[1]


def test_every_warpgroup_of_v3_hopper_stamps_and_pays_nothing_in_its_loops():
    problem = AttentionProblem(seq_len_q=1000, seq_len_kv=1000, head_dim=128, causal=True)
    tiles = default_tiles("v3-hopper", problem, Precision(), ARCHITECTURES[90])
    q = torch.empty((1, 16, 1000, 128), dtype=torch.bfloat16, device="meta")
    version, codes = load("v3-hopper"), []
    for stamps in (None, StampBuffers.on("meta", problem, tiles, stamping_lanes("v3-hopper", tiles))):
        launch = CompileOnly(90)
        version.forward(version.prepare(q, q, q, Precision(), launch), problem, tiles, launch, stamps=stamps)
        codes.append(instructions(launch.compiled["flash_v3_hopper_forward"]))
    plain, stamped = codes
    groups = tiles.block_m // 64
    clocks = places(stamped, "GLOBALTIMER")
    assert len(clocks) == 2 * (groups + 1)
    assert not places(stamped, "STL", "LDL")
    # Of a consumer's two readings the first precedes all its products, the second follows them; nothing is read in between.
    products = places(stamped, "HGMMA")
    within = [sum(first < product < last for product in products) for first, last in itertools.pairwise(clocks)]
    assert sorted(within)[-groups:] == [len(products) // groups] * groups
    assert len(products) == len(places(plain, "HGMMA"))
    # A start and an end for each, and by the first consumer also who it was, where, and how many tiles.
    assert len(places(stamped, "STG")) == len(places(plain, "STG")) + 2 * (groups + 1) + 3


def test_the_clock_is_read_anew_in_every_turn():
    launch = CompileOnly(90)
    launch(_smallest_step, (1,), torch.empty(1, dtype=torch.int64, device="meta"), 64, 1 << 20, num_warps=1)
    found = instructions(launch.compiled["_smallest_step"])
    before, within = places(found, "GLOBALTIMER")
    assert before < within < places(found, "BRA")[0]
