"""A backward's kernels as the compiler left them, against the cubins read by another tool and the algorithm's own counts."""

from __future__ import annotations

import json
import re

import pytest

from kernels.architecture import ARCHITECTURES
from kernels.problem import AttentionProblem, BackwardTiles, Precision, TileConfig
from kernels.registry import VERSIONS, Refused, default_backward_tiles
from profiling import assembly_process, cli
from profiling.assembly import STAGES, Assembler, Assembly, kernel_of
from profiling.assembly_counts import main_loop
from profiling.assembly_loops import Code, code_of, counts
from profiling.assembly_text import rows_of
from profiling.compile_request import backward_request, forward_request
from profiling.compiler_process import Question
from profiling.kernel_parts import backward_parts, forward_parts, tiles_of
from profiling.records import CompileReport, RunRequest
from tests import compiled_v2, sass

SMALL = AttentionProblem(seq_len_q=4096, seq_len_kv=4096, head_dim=64)
TILES = compiled_v2.BACKWARD.request.backward_tiles
PRODUCTS = {"dkdv": 4, "dq": 3}  # Sᵀ, dPᵀ, dV and dK; S, dP and dQ (FA2 paper, Algorithm 2)
TILE_OF = {"dkdv": TILES.dkdv, "dq": TILES.dq}


@pytest.fixture(scope="module")
def answer() -> Assembly:
    return compiled_v2.backward()


def code(answer: Assembly, part: str) -> Code:
    return code_of(rows_of("sass", kernel_of(answer.kernels, part).texts), answer.sources)


def test_every_kernel_is_there_the_one_for_dk_and_dv_last(answer):
    assert [one.part for one in answer.kernels] == ["delta", "dq", "dkdv"]
    assert answer.error is None
    for one in answer.kernels:
        assert set(one.texts) == set(STAGES)
    assert {"kernels/backward.py", "kernels/backward_v2.py"} <= set(answer.sources)


def test_no_instruction_of_any_is_lost(answer):
    for one in answer.kernels:
        mine = [(each.address, each.opcode) for each in code(answer, one.part).instructions]
        theirs = [
            (address, text.split()[0]) for address, text in sass.instructions(compiled_v2.backward_cubins()[one.report.kernel])
        ]
        assert mine == theirs[: len(mine)]
        assert {opcode for _, opcode in theirs[len(mine) :]} <= {"NOP", "BRA"}
        assert (one.report.capability, one.report.spill_bytes) == (90, 0)


@pytest.mark.parametrize("part", ["dkdv", "dq"])
def test_a_trip_has_the_algorithm_s_products_and_an_exponential_a_score(answer, part):
    tiles, found = TILE_OF[part], code(answer, part)
    trip = counts(main_loop(found).instructions)
    pairs = tiles.block_m * tiles.block_n
    assert trip["exp2"] == pairs // (32 * tiles.num_warps)
    # All products of these tiles are of 64 rows: what differs is how many columns and how deep.
    assert trip["wgmma"] == products(part, tiles)
    report = kernel_of(answer.kernels, part).report
    assert report.counts["matrix products"] == counts(found.instructions)["wgmma"]
    assert report.warps_per_program == tiles.num_warps


def products(part: str, tiles: TileConfig) -> int:
    """Instructions of 64 × N × 16: Q Kᵀ and dO Vᵀ go over head_dim, the others over the tile's other side."""
    over_head_dim = 2 * (SMALL.head_dim // 16)
    other_side = tiles.block_m if part == "dkdv" else tiles.block_n
    return over_head_dim + (PRODUCTS[part] - 2) * (other_side // 16)


def test_delta_has_neither_products_nor_loops(answer):
    found = code(answer, "delta")
    assert found.loops == ()
    assert "wgmma" not in counts(found.instructions)
    assert kernel_of(answer.kernels, "delta").report.kernel == "backward_delta"


@pytest.mark.parametrize("part", ["dkdv", "dq"])
def test_a_loop_is_named_after_its_line(answer, part):
    lines = [line.strip()[:-1] for line in answer.sources["kernels/backward_v2.py"].splitlines()]
    for loop in code(answer, part).loops:
        assert loop.words in lines
        assert loop.words.startswith("for query_block" if part == "dkdv" else "for first_key")


def answered(name: str, capability: int, **changes: object) -> Assembly:
    problem = AttentionProblem(seq_len_q=4096, seq_len_kv=4096, causal=True, **changes)
    request = backward_request(name, problem, Precision(), ARCHITECTURES[capability])
    found = assembly_process.answer_to(Question(request=request, capability=capability))
    assert found.error is None, found.error
    return found


def test_v1_has_one_kernel_for_all_three(answer):
    found = answered("v1", 89, head_dim=64)
    assert [one.part for one in found.kernels] == ["gradients"]
    for part in ("gradients", "dkdv", "dq", None):
        assert kernel_of(found.kernels, part) is found.kernels[0]
    assert kernel_of(found.kernels, "delta") is None
    assert found.kernels[0].report.counts["matrix products"] > 0
    assert kernel_of(answer.kernels, "gradients") is None


def test_hopper_s_own_is_in_gluon_and_has_every_stage_from_ttgir_on():
    found = answered("v3-hopper", 90)
    parts = {one.part: one for one in found.kernels}
    assert found.kernels[-1].part in ("dkdv", "gradients")
    assert set(found.kernels[-1].texts) == set(STAGES) - {"ttir"}
    assert set(parts["delta"].texts) >= {"sass", "ptx", "ttgir"}
    assert "kernels/backward_v3_hopper.py" in found.sources
    products = [one for one in found.kernels if one.report.counts.get("matrix products")]
    for one in products:
        loops = code_of(rows_of("sass", one.texts), found.sources).loops
        assert any(counts(loop.instructions).get("wgmma") for loop in loops)


@pytest.mark.long
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("name", ["v1", "v2", "v3", "v3-hopper"])
def test_every_version_s_backward_is_answered_on_every_gpu(name, capability):
    if name == "v3-hopper" and capability != 90:
        with pytest.raises(Refused, match="v3-hopper is not possible on sm_"):
            answered(name, capability)
        return
    found = answered(name, capability)
    for one in found.kernels:
        spills = counts(code_of(rows_of("sass", one.texts), found.sources).instructions).get("spills", 0)
        assert (one.report.spill_bytes > 0) == (spills > 0)
        assert one.report.programs_per_sm >= 1


def test_what_does_not_fit_is_said_of_its_kernel():
    wide = TileConfig(block_m=128, block_n=256, num_warps=8, num_stages=4)
    request = compiled_v2.BACKWARD.request.model_copy(update={"backward_tiles": BackwardTiles(dkdv=TILES.dkdv, dq=wide)})
    found = assembly_process.answer_to(Question(request=request, capability=120))
    needs = kernel_of(found.kernels, "dq").report.shared_memory_bytes
    assert found.error.kind == "refused"
    assert found.error.sentence == (
        f"dQ: BLOCK_N = 256 does not fit: with BLOCK_M = 128 and 4 stages it needs {needs / 1024:.0f} KiB of shared memory, "
        "and one program on sm_120 gets 99 KiB."
    )


# ---- What a kernel does, by its name


def test_parts_by_name():
    assert forward_parts(["quantize", "flash"]) == {"quantize": "quantize", "flash": "attention"}
    assert backward_parts([], ["flash_v1_backward"]) == {"flash_v1_backward": "gradients"}
    assert backward_parts(["rows"], ["a_dkdv", "a_dq", "sum"]) == {
        "rows": "delta", "a_dkdv": "dkdv", "a_dq": "dq", "sum": "sum"
    }  # fmt: skip
    assert backward_parts(["one", "two"], ["a_dkdv", "a_dq"])["one"] == "one"


def test_each_part_has_its_tiles():
    request = compiled_v2.BACKWARD.request
    assert (tiles_of(request, "dkdv"), tiles_of(request, "dq"), tiles_of(request, "delta")) == (TILES.dkdv, TILES.dq, None)
    assert tiles_of(compiled_v2.QUESTION.request, "attention") == compiled_v2.QUESTION.request.tiles


# ---- What can be asked


@pytest.mark.parametrize("name", ["v1", "v2", "v3", "v3-hopper"])
def test_a_backward_has_its_default_tiles_but_for_what_is_chosen(name):
    usual = default_backward_tiles(name, SMALL, Precision(), ARCHITECTURES[90])
    asked = backward_request(name, SMALL, Precision(), ARCHITECTURES[90])
    assert (asked.direction, asked.backward_tiles, asked.tiles) == ("backward", usual, None)
    given = backward_request(name, SMALL, Precision(), ARCHITECTURES[90], None, {"num_stages": 3}, {"num_stages": 2})
    assert given.backward_tiles.dkdv == usual.dkdv.model_copy(update={"num_stages": 3})
    if usual.dq is not None:
        assert given.backward_tiles.dq == usual.dq.model_copy(update={"num_stages": 2})


@pytest.mark.parametrize(
    ("name", "capability", "precision", "said"),
    [
        ("native", 90, Precision(), "kernel = native is not possible: its kernels are not ours to compile."),
        ("fa3", 90, Precision(), "kernel = fa3 is not possible: its kernels are not ours to compile."),
        (
            "v3",
            90,
            Precision(fp8=True),
            "FP8 is not possible with direction = backward: a backward reads Q, K and V in bf16 or",
        ),
        ("v3-hopper", 89, Precision(), "v3-hopper is not possible on sm_89 (Ada)"),
    ],
)
def test_what_is_not_possible_is_one_sentence(name, capability, precision, said):
    with pytest.raises(Refused, match=re.escape(said)):
        backward_request(name, SMALL, precision, ARCHITECTURES[capability])


def test_v1_has_no_tiles_for_dq():
    tiles = compiled_v2.BACKWARD.request.backward_tiles
    with pytest.raises(Refused, match="has one kernel: tiles for dQ alone are not possible"):
        backward_request("v1", SMALL, Precision(), ARCHITECTURES[90], tiles)


@pytest.mark.parametrize("name", [name for name, one in VERSIONS.items() if one.has_tiles])
def test_a_forward_is_asked_for_as_before(name):
    asked = forward_request(name, SMALL, Precision(), ARCHITECTURES[90], {})
    assert (asked.direction, asked.backward_tiles) == ("forward", None)
    assert asked.tiles is not None


# ---- The command line


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, answer: Assembly) -> list[Question]:
    """The questions that the command asks; every answer is the small backward."""
    asked: list[Question] = []

    def answer_of(_self, question):
        asked.append(question)
        return answer.model_copy(update={"question": question})

    monkeypatch.setattr(Assembler, "kept", lambda _self, _question: answer)
    monkeypatch.setattr(Assembler, "answer", answer_of)
    return asked


def test_the_command_asks_for_what_its_options_say(answers):
    backward = ["compile", "--kernel", "v2", "--direction", "backward", "--head-dim", "64"]
    tiles = [f"{TILES.dkdv.block_m},64,4,2", "64,64,4,2"]
    assert cli.main([*backward, "--backward-tiles", *tiles]) == 0
    assert answers == [compiled_v2.BACKWARD]
    answers.clear()
    assert cli.main([*backward, "--backward-tiles", *tiles, "--diff", "v3", "--diff-gpu", "sm_80"]) == 0
    assert answers[1].request == backward_request("v3", SMALL, Precision(), ARCHITECTURES[80])
    answers.clear()
    assert cli.main([*backward, "--backward-tiles", *tiles, "--diff-gpu", "sm_80"]) == 0
    assert (answers[1].capability, answers[1].request) == (80, compiled_v2.BACKWARD.request)
    answers.clear()
    assert cli.main([*backward, "--diff-backward-tiles", *tiles]) == 0
    assert answers[0].request == backward_request("v2", SMALL, Precision(), ARCHITECTURES[90])
    assert answers[1] == compiled_v2.BACKWARD


def test_the_command_shows_each_kernel(answers, answer, capsys):
    backward = ["compile", "--kernel", "v2", "--direction", "backward"]
    for of, part in ([], "dkdv"), (["--of", "dq"], "dq"), (["--of", "backward_delta"], "delta"):
        assert cli.main([*backward, *of, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["part"] == part
        assert CompileReport.model_validate_json(json.dumps(found["report"])) == kernel_of(answer.kernels, part).report
        assert found["instructions"] == counts(code(answer, part).instructions)
        assert [one["part"] for one in found["launched"]] == ["delta", "dq", "dkdv"]
        RunRequest.model_validate_json(json.dumps(found["request"]))
    for stage in STAGES:
        assert cli.main([*backward, "--of", "dq", "--show", stage, "--whole"]) == 0
        assert capsys.readouterr().out.rstrip("\n") == kernel_of(answer.kernels, "dq").texts[stage].rstrip("\n")


def test_the_counts_name_the_kernels_beside(answers, answer, capsys):
    assert cli.main(["compile", "--kernel", "v2", "--direction", "backward", "--of", "dq"]) == 0
    found = capsys.readouterr().out
    registers = {one.part: one.report.registers_per_thread for one in answer.kernels}
    assert f": flash_v2_backward_dq, {registers['dq']} registers a thread, no spills\n" in found
    assert f"also launched: dK, dV (--of dkdv), {registers['dkdv']} registers a thread, no spills" in found
    assert f"also launched: delta (--of delta), {registers['delta']} registers a thread, no spills" in found


def test_whose_backward_it_is_is_said(answers, capsys):
    assert cli.main(["compile", "--kernel", "v3-hopper", "--head-dim", "256", "--direction", "backward"]) == 0
    assert "the backward of v3: v3-hopper has none here of its own" in capsys.readouterr().out
    assert cli.main(["compile", "--kernel", "v3", "--direction", "backward"]) == 0
    assert "the backward of" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--kernel v2 --backward-tiles 64,64,4,2", "--backward-tiles is not possible with direction = forward"),
        ("--kernel v2 --diff-backward-tiles 64,64,4,2", "--diff-backward-tiles is not possible with direction = forward"),
        ("--kernel v2 --direction backward --backward-tiles 64,64,4,2", "The backward of v2 needs tiles for dQ, too."),
        ("--kernel v1 --direction backward --backward-tiles 64,64,4,2 64,64,4,2", "The backward of v1 has one kernel"),
        ("--kernel v2 --direction backward --backward-tiles 64x64", "--backward-tiles 64x64 is not possible: it is BLOCK_M"),
        (
            "--kernel v2 --direction backward --diff-backward-tiles 1 2",
            "--diff-backward-tiles 1 is not possible: it is BLOCK_M",
        ),
        ("--kernel v2@block_m=64 --direction backward", "v2@block_m=64 is not possible with direction = backward: --backward-"),
        ("--kernel native --direction backward", "kernel = native is not possible: its kernels are not ours to compile."),
        ("--kernel v3 --fp8 --direction backward", "FP8 is not possible with direction = backward"),
        ("--kernel v2 --direction backward --of dv", "of = dv is not possible: it can be delta, dq or dkdv."),
    ],
)
def test_bad_input_is_one_sentence(answers, arguments, said, capsys):
    assert cli.main(["compile", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_step_is_no_direction_to_compile(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["compile", "--kernel", "v2", "--direction", "both"])
    assert "--direction: invalid choice: 'both'" in capsys.readouterr().err
