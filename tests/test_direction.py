"""Forward, backward or both on the command line, in titles, tables and the form; each says which it is, and what it costs."""

from __future__ import annotations

import pytest

from app import form_check, repeat, result_facts, state
from app.figures import memory, roofline, step
from app.figures.style import LIGHT, Absent, Chart
from kernels.architecture import ARCHITECTURES
from kernels.problem import Precision
from kernels.registry import VERSIONS, default_backward_tiles
from profiling import direction
from profiling.case import Case
from profiling.memory import estimate
from profiling.records import DIRECTIONS
from profiling.text_report import line, table
from tests import records_for_tests as records
from tests.test_cli import H200, planned

GPU, INTERPRETER = records.gpu(), records.interpreter()


# Whose backward it is


def test_a_backward_that_is_another_version_s_is_said_to_be() -> None:
    (request,) = planned("--kernel v3-hopper --head-dim 256 --direction backward", H200).requests
    case = Case(0, request)
    case.admit(ARCHITECTURES[90])
    told = "The backward is that of v3: v3-hopper has none of its own for this head_dim."
    assert [flag.sentence for flag in case.flags] == [told]


@pytest.mark.parametrize("name", ["native", "v1", "v2", "v3", "v3-hopper", "sdpa-cudnn"])
def test_the_others_have_their_own(name: str) -> None:
    (request,) = planned(f"--kernel {name} --direction backward", H200).requests
    case = Case(0, request)
    case.admit(ARCHITECTURES[90])
    assert case.flags == []


# The command line


def test_a_command_line_without_a_direction_is_a_forward() -> None:
    request = planned("--kernel v2", H200).requests[0]
    assert (request.direction, request.backward_tiles) == ("forward", None)


@pytest.mark.parametrize("asked", ["backward", "both"])
def test_a_direction_brings_the_version_s_own_tiles_of_a_backward(asked: str) -> None:
    native, v1, v2 = planned(f"--kernel native,v1,v2 --direction {asked}", H200).requests
    assert {one.direction for one in (native, v1, v2)} == {asked}
    assert native.backward_tiles is None
    assert v1.backward_tiles.dq is None
    assert v2.backward_tiles.dq is not None


def test_tiles_of_a_backward_can_be_given() -> None:
    (request,) = planned("--kernel v2 --direction both --backward-tiles 64,64,4,2 128,32,8,3", H200).requests
    assert request.backward_tiles.title == "dK, dV 64 × 64, 4 warps, 2 stages; dQ 128 × 32, 8 warps, 3 stages"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--kernel fa3 --direction backward", "direction = backward is not possible with fa3: only native, v1"),
        ("--kernel v2 --direction sideways", "direction = 'sideways' is not possible"),
        ("--kernel v2 --direction both --probes schedule", "direction = both is not possible with the probe schedule: only a"),
        (
            "--kernel v2 --direction both --probes tiles",
            "direction = both is not possible with the probe tiles: only a forward",
        ),
        ("--kernel v2 --backward-tiles 64,64,4,2", "tiles of a backward are not possible with direction = forward"),
        ("--kernel v2 --direction both --backward-tiles 64x64", "--backward-tiles 64x64 is not possible: it is BLOCK_M"),
        ("--kernel v1 --direction both --backward-tiles 64,64,4,2 64,64,4,2", "The backward of v1 has one kernel"),
        ("--kernel v2 --direction both --backward-tiles 63,64,4,2 64,64,4,2", "BLOCK_M = 63 is not possible"),
    ],
)
def test_what_is_not_possible_with_a_direction_is_one_sentence(options: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"\.$") as caught:
        planned(options, H200)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_leaves_out_what_has_no_backward_and_says_so() -> None:
    found = planned("--kernel all --direction both --seq-len 4096", H200)
    assert "fa3" not in {one.kernel for one in found.requests}
    assert any("fa3" in sentence for sentence in found.left_out)


def test_the_table_has_the_gradients_the_parts_and_the_word_for_it() -> None:
    text = table((records.with_backward("native"), records.with_backward("v2"), records.with_backward("v1", passed=False)))
    row = {line[:20].strip(): line for line in text.splitlines()}
    assert text.splitlines()[0].startswith("16,384 tokens · head_dim 128 · causal · batch 1 · 16 heads · forward + backward")
    assert row["gradients"].split("  ")[-1] == "measured"
    assert "WRONG" in row["gradients"]
    assert "2.50e-03 ≤ 3.60e-03" in row["error of dK"]
    assert "3.80e-01 > 3.60e-03" in row["error of dK"]
    assert row["of it, forward"].endswith("timed alone, L2 flushed")
    assert row["of that, pre-process"].count("–") == 2
    assert "v2 fwd+bwd: The compile report is of the forward's kernels; what the compiler made of the backward's is on" in text
    assert "gradients correct (dk 2.5e−3 ≤ 3.6e−3)" in line(records.with_backward())
    assert "gradients WRONG (dk" in line(records.with_backward(passed=False))


def test_fp8_is_said_to_be_the_forward_s_alone() -> None:
    found = records.with_backward("v3")
    fp8 = found.model_copy(update={"request": found.request.model_copy(update={"precision": Precision(fp8=True)})})
    assert next(direction.sentences(fp8)).startswith(
        "The forward is FP8; the backward reads Q, K and V as they were before, in"
    )
    assert list(direction.sentences(records.on_gpu("v3", fp8=True))) == []


# Titles, charts, memory


def test_a_title_says_what_was_timed() -> None:
    titles = [result_facts.title([records.with_backward("v2", one).request]) for one in ("backward", "both")]
    assert titles[0].startswith("FlashAttention v2 · backward · 16,384 tokens")
    assert titles[1].startswith("FlashAttention v2 · forward + backward · 16,384 tokens")
    assert "forward" not in result_facts.title([records.on_gpu("v2").request])


def test_the_split_is_a_bar_a_version_and_a_table() -> None:
    found = [records.with_backward(kernel) for kernel in ("native", "v2", "v3")]
    chart = step.chart(found, found[1], LIGHT)
    assert isinstance(chart, Chart)
    forward, preprocess, backward = chart.figure.data
    assert list(forward.x) == [one.parts.forward.median_ms for one in found]
    assert list(preprocess.y) == [1, 2], "native has no pre-process"
    assert backward.x[1] == pytest.approx(found[1].parts.backward.median_ms - found[1].parts.preprocess.median_ms)
    assert chart.table[1]["backward"] == "69.7 %"
    assert chart.table[0]["pre-process"] == "none of its own"
    assert chart.provenance == "measured"
    assert step.headline(found[1]).startswith("the backward takes 69.7 %, 5.08 ms beside a forward of 2.21 ms")
    assert "(by the interpreter's clock: no GPU time)" in step.headline(records.with_backward(interpreted=True))


def test_there_is_no_split_without_a_step_and_none_of_a_wrong_one() -> None:
    forward, wrong = records.on_gpu("v2"), records.with_backward(passed=False)
    assert step.chart([forward], forward, LIGHT) is None
    assert step.headline(records.with_backward("v2", "backward")) is None
    assert step.chart([wrong], wrong, LIGHT) == Absent(step.TITLE, "its gradients or its output are wrong.")


def test_the_memory_of_a_step_is_measured_against_its_five_results() -> None:
    found = records.with_backward("v2")
    chart = memory.chart(found, LIGHT)
    assert chart.title == "Memory of a training step over seq_len"
    assert {"of it, gradients"} <= {row["what"] for row in chart.table}
    assert "of it, gradients" not in {row["what"] for row in memory.chart(records.on_gpu("v2"), LIGHT).table}
    assert isinstance(roofline.chart([found], found.label, LIGHT), Absent)


def test_what_a_step_needs_is_the_sum_of_its_tensors_and_native_s_three_squares() -> None:
    """q, k, v and dO are there; out, lse, dq, dk, dv come; native keeps P and has dP and dS beside it."""
    steps = {one: records.on_gpu("v2").request.model_copy(update={"direction": one}) for one in DIRECTIONS}
    tensor, lse, square = 16 * 16384 * 128 * 2, 16 * 16384 * 4, 16 * 16384 * 16384 * 2
    need = {name: estimate(request) for name, request in steps.items()}
    assert [need[one].inputs_bytes for one in DIRECTIONS] == [3 * tensor, 5 * tensor + lse, 4 * tensor]
    assert [need[one].outputs_bytes for one in DIRECTIONS] == [tensor + lse, 3 * tensor, 4 * tensor + lse]
    assert need["both"].added_bytes == need["both"].outputs_bytes
    native = {name: estimate(one.model_copy(update={"kernel": "native", "tiles": None})) for name, one in steps.items()}
    copies = 2 * tensor + 16384**2
    assert native["forward"].added_bytes == tensor + lse + copies + 2 * square
    assert native["both"].added_bytes == 4 * tensor + lse + 2 * copies + 3 * square
    assert native["backward"].kept_bytes == square


# The form


def test_the_form_asks_for_a_direction_with_the_version_s_own_tiles() -> None:
    for one in DIRECTIONS:
        checked = form_check.check({**state.FORM_DEFAULTS, "direction": one, "kernel": "v2"}, GPU, 90)
        request = checked.request
        assert request.direction == one
        expected = default_backward_tiles("v2", request.problem, request.precision, form_check.target(GPU, 90))
        assert request.backward_tiles == (None if one == "forward" else expected)
        names = {other.kernel for other in checked.run_all}
        assert ("fa3" in names) == (one == "forward")
        assert all(VERSIONS[name].backwards for name in names - {"fa3"})
        assert {other.direction for other in checked.run_all} == {one}
    assert form_check.check({**state.FORM_DEFAULTS}, GPU, 90).request.direction == "forward"


def test_the_interpreter_takes_longer_for_a_backward_and_says_so_before() -> None:
    seconds = [
        form_check.check({**state.FORM_DEFAULTS, "direction": one, "kernel": "v2"}, INTERPRETER, 90, 12.0).expected_s
        for one in ("forward", "both")
    ]
    # Beside what does not grow: a tile of the two backward kernels has 3.5 times a forward's products.
    assert seconds[1] - form_check.FIRST_RUN_S == pytest.approx(4.5 * (seconds[0] - form_check.FIRST_RUN_S), rel=0.3)


def test_a_step_is_repeated_as_a_step() -> None:
    found = records.with_backward("v2")
    (request,) = repeat.plan((found,), found.label, GPU, None).requests
    assert (request.direction, request.backward_tiles) == ("both", found.backward_tiles)
    assert repeat.form_values(found)["direction"] == "both"


@pytest.mark.parametrize("kernel", ["native", "v1", "v2", "v3", "v3-hopper"])
@pytest.mark.parametrize("asked", DIRECTIONS)
def test_the_form_says_with_which_tiles_a_backward_runs(kernel: str, asked: str) -> None:
    values = state.FORM_DEFAULTS | {"kernel": kernel, "direction": asked}
    request = form_check.check(values, GPU, 90).request
    assert form_check.suggested_backward_tiles(values, GPU, 90) == request.backward_tiles
    assert (request.backward_tiles is None) == (asked == "forward" or kernel == "native")
    assert form_check.suggested_backward_tiles(values | {"seq_len": "0"}, GPU, 90) is None


def test_a_run_says_where_its_backward_s_kernels_are() -> None:
    (said,) = direction.sentences(records.with_backward("v2", "both"))
    assert said.endswith("what the compiler made of the backward's is on the Compiler page, and in the command compile.")
    (said,) = direction.sentences(records.with_backward("native", "both", compiled=(), missing={"compiled": "it has none"}))
    assert said == "There is no compile report: it has none."
