"""A user's own Q, K and V: what is read is what was written, and whatever else the bytes are, one sentence comes of it."""

from __future__ import annotations

import argparse
import io
import pickle
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app import result_facts
from kernels.problem import AttentionProblem
from profiling import own_inputs, text_report
from profiling.bench import draw_inputs
from profiling.case import Case
from profiling.comparable import not_comparable
from profiling.own_inputs import LARGEST, as_npy, as_text, from_npy, from_text, identity, problem_of
from profiling.records import MAX_OWN_NUMBERS, OwnInputs, RunRequest
from profiling.run_options import Plan, add_run_options, plan
from tests import records_for_tests as records

RNG = np.random.default_rng(0)
SMALL = RNG.normal(size=(3, 16)).astype("<f4")


def header(text: str, numbers: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A .npy file with this header, true or not."""
    size = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + version + size + text.encode() + numbers


def claims(descr: str = "'<f4'", shape: str = "(3, 16)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def own(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...] | None = None) -> OwnInputs:
    return own_inputs.own_inputs(*(np.zeros(shape, "<f4") for shape in (q, k, v or k)))


# What can be read


@settings(deadline=None, max_examples=60)
@given(
    arrays.arrays(
        st.sampled_from(["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"]),
        arrays.array_shapes(min_dims=2, max_dims=4, max_side=6),
        elements=st.floats(-60000, 60000, width=16),
    ),
    st.sampled_from(["C", "F"]),
)
def test_what_numpy_saves_is_what_is_read(array: np.ndarray, order: str) -> None:
    found = from_npy("Q", as_npy(np.asarray(array, order=order)))
    assert found.dtype == np.dtype("<f4")
    assert found.flags.c_contiguous
    assert found.shape == (1,) * (4 - array.ndim) + array.shape
    assert np.array_equal(found.reshape(array.shape), array.astype("<f4"))


def test_the_largest_that_is_possible_is_read() -> None:
    array = RNG.normal(size=(MAX_OWN_NUMBERS // 16, 16))
    content = as_npy(array)
    assert len(content) <= own_inputs.MAX_FILE_BYTES
    assert np.array_equal(from_npy("K", content)[0, 0], array.astype("<f4"))


def test_a_header_of_the_second_version_is_read() -> None:
    assert np.array_equal(from_npy("Q", header(claims(), SMALL.tobytes(), b"\x02\x00"))[0, 0], SMALL)


@pytest.mark.parametrize(
    "text",
    [
        "1 2\n3 4",
        "1,2\n3,4\n",
        " 1\t2 ;\r\n\r\n3, 4 ",
        "[[1, 2], [3, 4]]",
        "[[1. 2.]\n [3. 4.]]",
        "[[1\n 2]\n [3\n 4]]",
        "[1,2],[3,4]",
    ],
)
def test_numbers_are_read_as_people_paste_them(text: str) -> None:
    assert from_text("V", text).tolist() == [[[[1.0, 2.0], [3.0, 4.0]]]]


def test_the_example_can_be_given_as_files_and_as_numbers() -> None:
    example = own_inputs.example()
    of_files = own_inputs.own_inputs(*(from_npy(name, as_npy(example[name])) for name in own_inputs.NAMES))
    of_text = own_inputs.own_inputs(*(from_text(name, as_text(example[name])) for name in own_inputs.NAMES))
    assert of_files == of_text
    assert problem_of(of_files, causal=True) == AttentionProblem(
        num_heads=1, num_kv_heads=1, seq_len_q=128, seq_len_kv=128, head_dim=32, causal=True
    )


def test_the_example_s_maxima_keep_rising() -> None:
    example = own_inputs.example()
    scores = example["Q"] @ example["K"].T * 32**-0.5
    of_tiles = scores.reshape(128, 4, 32).max(axis=2)
    assert (np.diff(of_tiles, axis=1) > 0).all()


def test_the_problem_follows_from_the_shapes() -> None:
    found = problem_of(own((2, 6, 5, 80), (2, 3, 9, 80)), causal=True)
    assert found == AttentionProblem(
        batch=2, num_heads=6, num_kv_heads=3, seq_len_q=5, seq_len_kv=9, head_dim=80, causal=True
    )  # fmt: skip
    RunRequest(kernel="v2", problem=found, inputs="own", own=own((2, 6, 5, 80), (2, 3, 9, 80)))


def test_other_numbers_have_another_identity() -> None:
    first, again = (own_inputs.own_inputs(*[SMALL[None, None]] * 3) for _ in range(2))
    assert identity(first) == identity(again)
    moved = SMALL.copy()
    moved[2, 3] += np.float32(2**-20)
    assert identity(own_inputs.own_inputs(SMALL[None, None], SMALL[None, None], moved[None, None])) != identity(first)


# What cannot


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "Q is no .npy file"),
        (b"\x93NUMPY", "its header cannot be read"),
        (pickle.dumps(SMALL), "Q is no .npy file"),
        (header(claims(), SMALL.tobytes(), b"\x03\x00"), "its header cannot be read"),
        (header(claims(), SMALL.tobytes()[:-1]), "needs 192 bytes, the file has 191"),
        (header(claims(), SMALL.tobytes() + b"\0"), "needs 192 bytes, the file has 193"),
        (as_npy(np.arange(32).reshape(2, 16)), "type <i8 is not possible: its numbers are float16, float32 or float64"),
        (as_npy(np.zeros((2, 16), "<c8")), "type <c8"),
        (as_npy(np.zeros((2, 16), "|S4")), "type |S4"),
        (as_npy(np.zeros((2, 16), "<M8[s]")), "its header cannot be read"),
        (as_npy(np.zeros(3, [("a", "<f4")])), "its header cannot be read"),
        (as_npy(np.zeros(16, "<f4")), "shape (16,) is not possible: it can be (seq_len, head_dim)"),
        (as_npy(np.float32(1)), "shape ()"),
        (as_npy(np.zeros((1, 1, 1, 1, 16), "<f4")), "shape (1, 1, 1, 1, 16)"),
        (as_npy(np.zeros((0, 16), "<f4")), "it has 0 numbers"),
        (as_npy(np.zeros((4097, 16), "<f4")), "it has 65,552 numbers, and can have 1 to 65,536"),
        (as_npy(np.full((2, 16), np.nan)), "Q holds nan at (0, 0)"),
        (as_npy(np.where(np.arange(32).reshape(2, 16) == 20, -np.inf, 0.0)), "Q holds -inf at (1, 4)"),
        (as_npy(np.full((2, 16), 1e300)), "Q holds 1e+300 at (0, 0)"),
        (as_npy(np.full((2, 16), LARGEST + 1)), "numbers can be −65,504 to 65,504"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as found:
        from_npy("Q", content)
    assert_one_sentence(found.value)


def assert_one_sentence(error: ValueError) -> None:
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 300


@pytest.mark.parametrize(
    "text",
    [
        claims(shape="(1000000000, 1000000)"),
        claims(shape="(999999999999999999, 999999999999999999, 999999999999999999, 999999999999999999)"),
        claims(shape="(" + "9" * 5000 + ", 16)"),
        claims(shape="(-1, 16)"),
        claims(shape="(True, 16)"),
        claims(shape="(3.0, 16)"),
        claims(shape="(" + "1, " * 3000 + ")"),
        claims(shape="[3, 16]"),
        claims(shape="(" * 4000 + "3, 16" + ")" * 4000),
        claims(descr="'|O'"),
        claims(descr="'<f9999'"),
        claims(descr="'<V999999999'"),
        claims(descr="('<f4', (1000000, 1000000))"),
        claims(descr="[('a', '<f4'), ('b', '|O')]"),
        claims(order="__import__('os')"),
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False}",
        claims()[:-2] + "'more': 1}",
        "{" * 9000,
        " " * 9990 + "{",
        "{" + "'shape':(1),'shape':(1)," * 400 + "x",
        "(" * 200 + ")" * 200,
        claims().replace("'", '"'),
        "\x00" * 100,
        "",
    ],
)
def test_a_header_that_claims_too_much_costs_a_sentence_and_no_memory(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="Q ") as found:
            from_npy("Q", header(text, SMALL.tobytes()))
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
    assert_one_sentence(found.value)


def test_an_archive_of_arrays_is_no_array() -> None:
    file = io.BytesIO()
    np.savez(file, q=SMALL)
    assert zipfile.is_zipfile(file)
    with pytest.raises(ValueError, match=r"Q is no \.npy file"):
        from_npy("Q", file.getvalue())


def test_a_pickle_in_a_npy_file_is_never_loaded(tmp_path) -> None:
    class Touches:
        def __reduce__(self):
            return (tmp_path.joinpath("was_here").touch, ())

    file = io.BytesIO()
    np.save(file, np.array([[Touches()]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"type \|O is not possible"):
        from_npy("Q", file.getvalue())
    assert not tmp_path.joinpath("was_here").exists()


@settings(deadline=None, max_examples=150)
@given(
    st.binary(max_size=40),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    st.integers(0, 400),
)
def test_damaged_files_give_finite_numbers_or_a_sentence(tail: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(as_npy(SMALL))
    for place, byte in changes:
        content[place % len(content)] = byte
    damaged = bytes(content[:cut] if cut < len(content) else content) + (tail if cut % 3 == 0 else b"")
    try:
        found = from_npy("Q", damaged)
    except ValueError as error:
        assert_one_sentence(error)
    else:
        assert np.isfinite(found).all()
        assert found.ndim == 4
        assert found.size <= MAX_OWN_NUMBERS


@settings(deadline=None, max_examples=100)
@given(
    st.one_of(
        st.text(max_size=60),
        st.text("0123456789.-+eE[],; \n\tnaif_", max_size=80),
        st.from_regex(r"\[?(\d+ \d+\n){1,3}", fullmatch=True),
    )
)
def test_any_text_gives_finite_numbers_or_a_sentence(text: str) -> None:
    try:
        found = from_text("K", text)
    except ValueError as error:
        assert_one_sentence(error)
    else:
        assert np.isfinite(found).all()
        assert found.shape[:2] == (1, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "K is empty"),
        (" \n,;\n[]", "K is empty"),
        ("1 2\n3", "K, row 2, is 1 long and row 1 is 2"),
        ("1 2\n3 x", "K, row 2: 'x' is no number"),
        ("1 nan", "K holds nan at (0, 1)"),
        ("1 1e9", "K holds 1e+09 at (0, 1)"),
        ("\n".join(["1 2"] * 40000), "it has 80,000 numbers"),
        ("1" * (own_inputs.MAX_TEXT + 1), "characters is not possible"),
    ],
)
def test_pasted_text_that_cannot_be_read_is_said(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as found:
        from_text("K", text)
    assert_one_sentence(found.value)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((1, 1, 4, 16), (1, 1, 4, 16), (1, 1, 5, 16)), "V of shape (1, 1, 5, 16) is not possible: K has (1, 1, 4, 16)"),
        (((1, 1, 4, 16), (1, 1, 4, 32)), "K of shape (1, 1, 4, 32) is not possible with Q of shape (1, 1, 4, 16)"),
        (((2, 1, 4, 16), (1, 1, 4, 16)), "batch and head_dim are the same"),
        (((1, 1, 4, 12), (1, 1, 4, 12)), "head_dim = 12 is not possible: it can be 16, 32, 64, 80, 96, 128 or 256"),
        (((1, 4, 4, 16), (1, 3, 4, 16)), "num_kv_heads = 3 is not possible: num_heads = 4 must be a multiple of it"),
        (((1, 2, 4, 16), (1, 4, 4, 16)), "num_kv_heads = 4 is not possible: it can be 1 to 2"),
    ],
)
def test_shapes_that_do_not_fit_together_are_said(shapes: tuple, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as found:
        own(*shapes)
    assert_one_sentence(found.value)


# On the command line, and in a job


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    shapes = {"Q": (4, 5, 16), "K": (2, 7, 16), "V": (2, 7, 16)}
    paths = [tmp_path / f"{name}.npy" for name in shapes]
    for path, shape in zip(paths, shapes.values(), strict=True):
        np.save(path, RNG.normal(size=shape))
    return [str(path) for path in paths]


def planned(*arguments: str) -> Plan:
    parser = argparse.ArgumentParser()
    add_run_options(parser)
    return plan(parser.parse_args(["--kernel", "v1,v2", *arguments]), (records.interpreter(),))


@pytest.mark.parametrize("said", [["--inputs", "own"], [], ["--seq-len-q", "5", "--num-kv-heads", "2"]])
def test_the_command_line_takes_three_files(files: list[str], said: list[str]) -> None:
    for request in planned(*said, "--own", *files, "--causal").requests:
        assert request.inputs == "own"
        assert request.problem == AttentionProblem(
            num_heads=4, num_kv_heads=2, seq_len_q=5, seq_len_kv=7, head_dim=16, causal=True
        )
        assert np.array_equal(request.own.k.numpy()[0], np.load(files[1]).astype("<f4"))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (["--inputs", "own"], "--inputs own is not possible without --own Q.npy K.npy V.npy"),
        (["--inputs", "ramp", "--own", "Q", "K", "V"], "--own is not possible with --inputs ramp"),
        (["--own", "Q", "K", "V", "--seq-len", "9"], "seq_len_q = 9 is not possible: the files of --own have 5"),
        (["--own", "Q", "K", "V", "--head-dim", "32"], "head_dim = 32 is not possible: the files of --own have 16"),
        (["--own", "nowhere.npy", "K", "V"], "nowhere.npy cannot be read: No such file or directory"),
        (["--own", "/dev/zero", "K", "V"], "Q is no .npy file"),
        (["--own", "Q", "K", "Q"], "V of shape (1, 4, 5, 16) is not possible: K has (1, 2, 7, 16)"),
    ],
)
def test_the_command_line_says_what_is_not_possible(files: list[str], said: list[str], says: str) -> None:
    paths = dict(zip(own_inputs.NAMES, files, strict=True))
    with pytest.raises(ValueError, match=re.escape(says)) as found:
        planned(*(paths.get(word, word) for word in said))
    assert_one_sentence(found.value)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_job_computes_with_these_numbers_rounded_once(files: list[str], dtype: str) -> None:
    request = planned("--own", *files, "--dtype", dtype).requests[0]
    for tensor, path in zip(draw_inputs(Case(0, request), torch.device("cpu")), files, strict=True):
        expected = torch.tensor(np.load(path)[None]).float().to(getattr(torch, {"bf16": "bfloat16", "fp16": "float16"}[dtype]))
        assert torch.equal(tensor, expected)
        assert tensor.is_contiguous()


def test_a_result_says_what_its_inputs_were() -> None:
    given = own_inputs.own_inputs(*[SMALL[None, None]] * 3)
    request = RunRequest(kernel="v2", problem=problem_of(given, causal=False), inputs="own", own=given)
    measurement = records.in_interpreter("v2", request=request)
    words = f"own {identity(given)} inputs"
    assert words in text_report.line(measurement)
    assert words in text_report.table((measurement,)).splitlines()[0]
    assert words in result_facts.title([request])
    assert "inputs" not in text_report.line(records.in_interpreter("v2"))


def test_results_of_other_numbers_are_not_compared() -> None:
    given, other = (own_inputs.own_inputs(*[array[None, None]] * 3) for array in (SMALL, -SMALL))
    before, after = (
        records.on_gpu("v2").model_copy(
            update={"request": RunRequest(kernel="v2", problem=problem_of(one, False), inputs="own", own=one)}
        )
        for one in (given, other)
    )
    assert f"inputs is own {identity(given)} in A and own {identity(other)} in B" in not_comparable(before, after)
