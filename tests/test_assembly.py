"""The compiler's texts against the cubin read by another tool, the kernel's source, and arithmetic; code by hand."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from profiling import assembly, cli
from profiling.assembly import ROOT, STAGES, Assembler, Assembly
from profiling.assembly_counts import count_table, paired
from profiling.assembly_diff import comparable, unified
from profiling.assembly_loops import Loop, code_of, counts, kind_of, meanings
from profiling.assembly_text import Place, Row, rows_of
from profiling.records import JobError
from tests import compiled_v2, sass

PAIRS_A_TRIP = 64 * 64 // 128  # scores of a tile over the program's threads


@pytest.fixture(scope="module")
def answer() -> Assembly:
    return compiled_v2.answer()


@pytest.fixture(scope="module")
def texts(answer: Assembly) -> dict[str, str]:
    return answer.kernels[-1].texts


@pytest.fixture(scope="module")
def code(answer: Assembly, texts: dict[str, str]):
    return code_of(rows_of("sass", texts), answer.sources)


def by_hand(*lines: str) -> tuple[Row, ...]:
    """Rows of SASS: labels as they are, instructions numbered."""
    text = [line if line.endswith(":") else f"        /*{16 * place:04x}*/      {line} ;" for place, line in enumerate(lines)]
    return rows_of("sass", {"sass": "\n".join(text), "ptx": ""})


def test_every_stage_is_there_and_names_no_folder_of_this_machine(texts):
    assert list(texts)
    assert set(texts) == set(STAGES)
    for text in texts.values():
        assert str(ROOT) not in text
        assert sysconfig.get_paths()["purelib"] not in text


def test_no_instruction_is_lost_and_each_is_in_one_class(code):
    theirs = [(address, text.split()[0]) for address, text in sass.instructions(compiled_v2.cubin())]
    # cuobjdump goes on to the padding behind the code, which nvdisasm leaves out.
    assert [(one.address, one.opcode) for one in code.instructions] == theirs[: len(code.instructions)]
    assert {opcode for _, opcode in theirs[len(code.instructions) :]} <= {"NOP", "BRA"}
    assert sum(counts(code.instructions).values()) == len(code.instructions)


def test_counts_are_the_reports(answer, code):
    mine, theirs = counts(code.instructions), answer.kernels[-1].report.counts
    assert mine["wgmma"] == theirs["matrix products"]
    assert mine["cp.async"] == theirs["asynchronous copies by address"]
    assert (mine["exp2"], mine["shuffles"], mine["barriers"]) == (theirs["exp2"], theirs["shuffles"], theirs["barriers"])


def test_the_loops_over_key_tiles_are_found_named_and_counted(answer, code):
    theirs = [loop for loop in sass.loops(sass.instructions(compiled_v2.cubin())) if any("HGMMA" in text for text in loop)]
    assert sorted(len(loop.instructions) for loop in code.loops) == sorted(map(len, theirs))
    source = answer.sources["kernels/flash_v2.py"].splitlines()
    assert [loop.words for loop in code.loops] == [line.strip()[:-1] for line in source if "for first_key in" in line]
    for loop in code.loops:
        # Weights, and a row's alpha: a thread has two rows.
        assert counts(loop.instructions)["exp2"] == PAIRS_A_TRIP + 2


@pytest.mark.parametrize(
    ("stage", "pattern"),
    [
        ("sass", r"MUFU\.EX2"),
        ("ptx", r"ex2\.approx"),
        ("llir", r"ex2\.approx"),
        ("ttgir", r"math\.exp2"),
        ("ttir", r"math\.exp2"),
    ],
)
def test_a_power_of_two_comes_from_a_line_that_takes_one(answer, texts, stage, pattern):
    rows = [row for row in rows_of(stage, texts) if re.search(pattern, row.shown) and not row.shown.startswith("declare")]
    assert rows
    for row in rows:
        lines = [answer.sources[p.file].splitlines()[p.line - 1] for p in row.chain if p.file in answer.sources]
        assert any("exp2" in line for line in lines), row


def test_a_product_comes_from_the_line_that_calls_for_it(answer, texts):
    # In PTX: in SASS ptxas's own line table gives some of the products it moved the line of what stands before them.
    source = answer.sources["kernels/flash_v2.py"].splitlines()
    products = [row for row in rows_of("ptx", texts) if "wgmma.mma_async" in row.text]
    assert len(products) == 16
    for row in products:
        called = [source[place.line - 1] for place in row.chain if place.file == "kernels/flash_v2.py"]
        assert any("dot(" in line or "dot_add(" in line for line in called)


def test_noise_is_what_holds_no_code(texts):
    for stage in STAGES:
        rows = rows_of(stage, texts)
        assert "\n".join(row.text for row in rows) == texts[stage].rstrip("\n")
        assert 0 < sum(row.is_noise for row in rows) < len(rows)
    assert not [row for row in rows_of("sass", texts) if row.is_noise and "/*" in row.text and ";" in row.text]
    assert not [row for row in rows_of("ptx", texts) if row.is_noise and row.text.rstrip().endswith(";")]


# ---- Loops by hand


def test_an_inner_loop_is_counted_and_the_outer_is_not():
    rows = by_hand(
        "S2R R1, SR_TID.X", ".L_x_0:", "HGMMA.64x64x16.F32 R2, gdesc[UR4], RZ", ".L_x_1:",
        "HGMMA.64x64x16.F32 R2, gdesc[UR4], R2", "MUFU.EX2 R3, R3", "@P0 BRA `(.L_x_1)",
        "@P1 BRA `(.L_x_0)", "EXIT", ".L_x_9:", "BRA `(.L_x_9)",
    )  # fmt: skip
    (loop,) = code_of(rows, {}).loops
    assert counts(loop.instructions) == {"wgmma": 1, "exp2": 1, "control": 1}
    assert loop.begins == 16 * 4


def test_a_wait_out_of_line_belongs_to_the_loop_and_is_none_itself():
    rows = by_hand(
        ".L_x_0:", "SYNCS.PHASECHK P0, [R1], R2", "@!P0 BRA `(.L_x_2)", ".L_x_1:", "HGMMA.64x64x16.F32 R2, gdesc[UR4], R2",
        "@P1 BRA `(.L_x_0)", "EXIT", ".L_x_2:", "SYNCS.PHASECHK P0, [R1], R2", "@!P0 BRA `(.L_x_2)", "BRA `(.L_x_1)",
    )  # fmt: skip
    (loop,) = code_of(rows, {}).loops
    assert counts(loop.instructions) == {"wgmma": 1, "mbarriers": 2, "control": 4}


def test_a_producer_behind_a_jump_table_has_its_loop_too():
    rows = by_hand(
        'BRX R1 -0x10 (*"BRANCH_TARGETS .L_x_0,.L_x_1"*)', ".L_x_0:", "UTMALDG.2D [UR4], [UR6]", "@P0 BRA `(.L_x_0)", "EXIT",
        ".L_x_1:", "HGMMA.64x64x16.F32 R2, gdesc[UR4], R2", "BRA.U UP0, `(.L_x_1)", "EXIT",
    )  # fmt: skip
    assert [counts(loop.instructions) for loop in code_of(rows, {}).loops] == [
        {"TMA loads": 1, "control": 1}, {"wgmma": 1, "control": 1}
    ]  # fmt: skip


def test_opcodes_are_told_apart():
    told = {
        "UTCHMMA": "tcgen05.mma", "HMMA.16816.F32": "mma", "QGMMA.64x128x32.F32.E4M3.E4M3": "wgmma",
        "MUFU.RCP": "other special functions",
        "LDL.LU": "spills", "STL": "spills", "LDS.128": "shared loads", "LDSM.16.M88.4": "ldmatrix", "LDG.E": "global loads",
        "LDGSTS.E.BYPASS": "cp.async", "LDGDEPBAR": "waits for copies", "PRMT": "PRMT", "F2FP.BF16.F32.PACK_AB": "F2FP",
        "IMAD.MOV.U32": "moves", "IMAD.WIDE": "integer", "UIADD3.X": "uniform integer", "UTMALDG.4D": "TMA loads",
        "WARPGROUP.DEPBAR.LE": "waits for wgmma", "BAR.SYNC.DEFER_BLOCKING": "barriers", "ZZZ": "other",
    }  # fmt: skip
    assert {opcode: kind_of(opcode) for opcode in told} == told
    assert all(meaning.endswith(".") for meaning in meanings().values())


def test_like_loops_stand_beside_each_other(code):
    masked, full = code.loops[1], code.loops[0]
    load = replace(
        full, words="for j in range(n)", instructions=tuple(one for one in full.instructions if one.kind == "cp.async")
    )
    second = replace(code, loops=(load, masked))
    assert paired(code, second) == [(0, None), (1, 1), (None, 0)]
    assert paired(code, code) == [(0, 0), (1, 1)]
    table = count_table([code, second])
    assert table.groups == ("whole kernel", "loops 1, –", "loop 2", "loops –, 1")
    assert next(row for row in table.rows if row.name == "exp2").cells[2:] == (
        PAIRS_A_TRIP + 2, None, PAIRS_A_TRIP + 2, PAIRS_A_TRIP + 2, None, 0,
    )  # fmt: skip


# ---- Differences


def test_a_diff_holds_both_texts(texts):
    rows = rows_of("sass", texts)
    other = (*rows[:700], *rows[900:])
    lines = unified("sass", rows, other, context=len(rows))
    for mark, side, place in (("-", rows, 0), ("+", other, 1)):
        assert [(line.rows[place], line.text) for line in lines if line.mark in (" ", mark)] == comparable("sass", side)


def test_numbers_of_registers_addresses_and_labels_make_no_difference():
    first = by_hand(".L_x_0:", "@P0 FFMA R12, R3.reuse, UR4, -R151", "@!P1 BRA `(.L_x_0)")
    second = by_hand("", ".L_x_7:", "@P3 FFMA R2, R77, UR40, -R9.reuse", "@!P0 BRA `(.L_x_7)")
    assert unified("sass", first, second) == []
    third = by_hand(".L_x_0:", "@!P0 FFMA R12, R3, UR4, R151", "@!P1 BRA `(.L_x_0)")
    assert [line.mark for line in unified("sass", first, third)] == ["@", " ", "-", "+", " "]


# ---- Asked of the process, kept on disk

CHILD = """
import sys
for line in sys.stdin:
    open(sys.argv[1], "a").write("x")
    {then}
"""


def assembler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> Assembler:
    """One whose child does this with a question, and counts the questions in a file."""
    import subprocess

    command = [sys.executable, "-c", CHILD.format(then=then), str(tmp_path / "asked")]
    pipe = subprocess.PIPE
    monkeypatch.setattr(assembly, "_started", lambda: subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
    return Assembler(tmp_path / "kept")


def test_an_answer_is_compiled_once_and_then_read(tmp_path, monkeypatch, answer):
    (tmp_path / "answer").write_text(answer.model_dump_json())
    found = assembler(tmp_path, monkeypatch, f"print(open({str(tmp_path / 'answer')!r}).read(), flush=True)")
    assert found.kept(compiled_v2.QUESTION) is None
    assert found.answer(compiled_v2.QUESTION) == found.answer(compiled_v2.QUESTION) == answer
    assert Assembler(tmp_path / "kept").kept(compiled_v2.QUESTION) == answer
    assert (tmp_path / "asked").read_text() == "x"
    monkeypatch.setattr(assembly, "_what_compiles", lambda: ("another Triton",))
    assert found.kept(compiled_v2.QUESTION) is None
    monkeypatch.undo()
    next((tmp_path / "kept").iterdir()).write_bytes(b"no gzip")
    assert found.kept(compiled_v2.QUESTION) is None
    found.close()


def test_a_compiler_that_dies_or_hangs_is_said_so(tmp_path, monkeypatch):
    died = assembler(tmp_path, monkeypatch, "sys.exit(3)").answer(compiled_v2.QUESTION)
    assert (died.error.kind, died.kernels) == ("crashed", ())
    monkeypatch.setattr(assembly, "LIMIT_S", 0.2)
    hung = assembler(tmp_path, monkeypatch, "import time; time.sleep(60)").answer(compiled_v2.QUESTION)
    assert (hung.error.kind, "0.2 s" in hung.error.sentence) == ("timeout", True)
    assert not list(tmp_path.glob("kept/*"))
    monkeypatch.setattr(assembly, "LIMIT_S", 60.0)
    slow = assembler(tmp_path, monkeypatch, "import time; time.sleep(60)")
    threading.Thread(target=lambda: (wait_for(lambda: len((tmp_path / "asked").read_text()) == 3), slow.stop())).start()
    assert slow.answer(compiled_v2.QUESTION).error.kind == "cancelled"


def wait_for(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.01)


# ---- The command line


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch, answer: Assembly) -> list[Assembly]:
    """What the command's compiler answers: the same for every question, but for the question."""
    given = [answer]

    def answer_of(_self, question):
        return given[0].model_copy(update={"question": question})

    monkeypatch.setattr(Assembler, "kept", answer_of)
    monkeypatch.setattr(Assembler, "answer", answer_of)
    return given


def test_the_command_counts_shows_and_compares(answered, code, capsys):
    assert cli.main(["compile", "--kernel", "v2@block_m=64,block_n=64", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["instructions"] == counts(code.instructions)
    assert [loop["instructions"] for loop in found["loops"]] == [counts(loop.instructions) for loop in code.loops]
    assert cli.main(["compile", "--kernel", "v2", "--show", "sass"]) == 0
    assert len(re.findall(r"/\*[0-9a-f]{4}\*/", capsys.readouterr().out)) == len(code.instructions)
    assert cli.main(["compile", "--kernel", "v2", "--diff", "v2@block_m=128", "--show", "sass"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("+++ v2 bf16, 128 × ")
    assert cli.main(["compile", "--kernel", "v2", "--diff-gpu", "sm_89"]) == 0
    assert re.search(r"^exp2 +68 +68 +34 +34 +34 +34 ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--kernel", "v2", "--gpu", "sm_91"],
            "gpu = sm_91 is not possible: it can be sm_80, sm_86, sm_89, sm_90, sm_100, sm_120.",
        ),
        (["--kernel", "v2@block_m=48"], "BLOCK_M = 48 is not possible"),
        (["--kernel", "native"], "kernel = native is not possible: its kernels are not ours to compile."),
        (["--kernel", "v2,v3"], "compile takes one; --diff takes a second."),
        (["--kernel", "v3", "--fp8", "--gpu", "sm_80"], "FP8 is not possible on sm_80"),
        (["--kernel", "v2", "--of", "other"], "of = other is not possible: it can be flash_v2_forward."),
        (["--kernel", "v2", "--show", "ptx", "--json"], "--json is not possible with --show ptx"),
    ],
)
def test_what_is_not_possible_is_said_in_one_sentence(answered, arguments, said, capsys):
    assert cli.main(["compile", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_what_does_not_compile_is_said_with_the_compilers_own_words(answered, answer, capsys):
    error = JobError(kind="compile", sentence="v2 could not be compiled: no.", raw="error: no\n  here")
    answered[0] = answer.model_copy(update={"kernels": (), "error": error})
    assert cli.main(["compile", "--kernel", "v2"]) == 1
    found = capsys.readouterr()
    assert (found.out, found.err) == ("", "v2 could not be compiled: no.\nerror: no\n  here\n")


def test_a_place_is_that_of_the_calls_that_all_share():
    inlined = "\t.loc\t1 9 0   // tiles.py:9:4 @[ flash.py:{}:1 @[ flash.py:90:1 ] ]"
    ptx = "\n".join([inlined.format(20), "\tadd.s32 %r1, %r2, %r3;", inlined.format(30), "\tadd.s32 %r1, %r2, %r3;"])
    text = '\t//## File "tiles.py", line 9\n        /*0000*/      IADD3 R1, R2, R3, RZ ;'
    (row,) = (row for row in rows_of("sass", {"sass": text, "ptx": ptx}) if not row.is_noise)
    assert row.chain == (Place("tiles.py", 9), Place("flash.py", 90))


def test_a_loop_without_a_known_line_goes_by_its_address():
    assert Loop((), 0x40).name == "loop at 0x40"
