"""What stands in the form becomes a request, or one sentence at the field that is wrong."""

from __future__ import annotations

import pytest

from app import form_check, presets, state
from kernels.architecture import architecture
from kernels.problem import Precision
from kernels.registry import OUR_VERSIONS, PEERS, default_tiles, ours_on
from tests import records_for_tests as records

INTERPRETER, GPU = records.interpreter(), records.gpu()


def values(**changes: str | bool) -> dict[str, str | bool]:
    return {**state.FORM_DEFAULTS, **changes}


def test_the_default_form_is_a_tiny_problem_with_default_tiles() -> None:
    checked = form_check.check(values(), INTERPRETER, 90)
    assert checked.errors == {}
    assert checked.request.problem == records.TINY
    assert (checked.request.tiles.block_m, checked.request.tiles.block_n) == (64, 64)
    assert checked.request.compile_for == 90
    assert checked.expected_s < 2


@pytest.mark.parametrize(("typed", "length"), [("3000", 3000), ("3,000", 3000), ("16k", 16384), (" 1K ", 1024)])
def test_lengths_may_be_typed(typed: str, length: int) -> None:
    assert form_check.check(values(seq_len=typed), GPU, 90).request.problem.seq_len_q == length


@pytest.mark.parametrize(
    ("field", "typed", "says"),
    [
        ("seq_len", "lots", "seq_len = lots is not possible"),
        ("seq_len", "-5", "seq_len = -5 is not possible"),
        ("seq_len", "0", "it can be 1 to"),
        ("seq_len", "9" * 40, "whole number"),
        ("seq_len_kv", "x", "seq_len_kv = x is not possible"),
        ("num_kv_heads", "3", "num_kv_heads = 3 is not possible"),
        ("num_heads", "2.5", "num_heads = 2.5 is not possible"),
        ("batch", "0", "batch = 0 is not possible"),
        ("batch", "", "batch =  is not possible"),
    ],
)
def test_a_bad_value_gets_one_sentence_at_its_field(field: str, typed: str, says: str) -> None:
    checked = form_check.check(values(**{field: typed}), GPU, 90)
    assert checked.request is None
    assert checked.run_all == ()
    assert list(checked.errors) == [field]
    assert says in checked.errors[field]


@pytest.mark.parametrize(("field", "typed", "name"), [("block_m", "192", "BLOCK_M"), ("num_warps", "12", "num_warps")])
def test_three_warpgroups_are_hoppers_alone_and_said_at_their_field(field: str, typed: str, name: str) -> None:
    for version, device in (("v1", GPU), ("v2", GPU), ("v3", INTERPRETER)):
        checked = form_check.check(values(kernel=version, **{field: typed}), device, 90)
        assert checked.errors[field].startswith(f"{name} = {typed} is not possible with {version}: it can be ")
        assert checked.cure is not None
    chosen = values(kernel="v3-hopper", head_dim="64", block_m="192", block_n="128", num_warps="12", num_stages="2")
    assert form_check.check(chosen, GPU, 90).errors == {}


def test_the_interpreter_stops_where_a_run_takes_twenty_seconds() -> None:
    choices = form_check.seq_len_choices(values(), INTERPRETER, 90, 12.0)
    assert choices[0] == 64
    longest = choices[-1]
    accepted = form_check.check(values(seq_len=str(longest)), INTERPRETER, 90, 12.0)
    refused = form_check.check(values(seq_len=str(2 * longest)), INTERPRETER, 90, 12.0)
    assert accepted.expected_s <= 20 < refused.expected_s
    assert "interpreter" in refused.errors["seq_len"]
    assert max(form_check.seq_len_choices(values(), GPU, 90, None)) == max(form_check.SEQ_LENS)


def test_a_tile_that_takes_longer_leaves_shorter_choices() -> None:
    slow = form_check.seq_len_choices(values(), INTERPRETER, 90, 400.0)
    quick = form_check.seq_len_choices(values(), INTERPRETER, 90, 4.0)
    assert slow == quick[: len(slow)]
    assert len(slow) < len(quick)


def test_native_at_64k_says_what_it_needs_and_does_not_try() -> None:
    asked = values(kernel="native", **{**presets.PRESETS["FA3 paper"].values, "seq_len": "65536"})
    checked = form_check.check(asked, GPU, 90)
    assert checked.request is None
    assert "needs" in checked.errors["memory"]
    assert checked.needed_bytes > GPU.memory_bytes
    assert form_check.check({**asked, "kernel": "v2"}, GPU, 90).errors == {}


def test_fp8_is_ignored_where_it_cannot_be_chosen() -> None:
    assert form_check.check(values(kernel="v3", fp8=True), GPU, 90).request.precision.fp8
    assert not form_check.check(values(kernel="v2", fp8=True), GPU, 90).request.precision.fp8
    ampere = GPU.model_copy(update={"capability": 80})
    assert not form_check.check(values(kernel="v3", fp8=True), ampere, 90).request.precision.fp8
    assert "sm_89" in form_check.fp8_reason("v3", ampere)


def test_what_the_registry_refuses_stands_at_its_field_with_a_cure() -> None:
    checked = form_check.check(values(kernel="v3", fp8=True, block_n="16"), GPU, 90)
    assert list(checked.errors) == ["block_n"]
    assert checked.cure.block_n == 32


def test_a_gpu_before_ampere_is_refused_by_name() -> None:
    checked = form_check.check(values(), GPU.model_copy(update={"capability": 75}), 90)
    assert "sm_75" in checked.errors["device"]


def test_all_versions_share_the_problem_and_each_has_its_tiles() -> None:
    checked = form_check.check(values(block_m="32", fp8=True), GPU, 90)
    assert [request.kernel for request in checked.run_all] == [*OUR_VERSIONS, *PEERS]
    by_kernel = {request.kernel: request for request in checked.run_all}
    assert by_kernel["v3"].tiles.block_m == 32
    assert by_kernel["v2"].tiles == default_tiles("v2", records.TINY, Precision(), architecture(90))
    assert by_kernel["native"].tiles is None
    assert by_kernel["v3"].precision.fp8
    assert not by_kernel["v2"].precision.fp8
    assert [request.kernel for request in form_check.check(values(), INTERPRETER, 90).run_all] == list(ours_on(None))


def test_loop_order_belongs_to_v1_alone() -> None:
    assert form_check.check(values(kernel="v1", loop_order="key"), GPU, 90).request.tiles.loop_order == "key"
    assert form_check.check(values(kernel="v2", loop_order="key"), GPU, 90).request.tiles.loop_order == "query"


@pytest.mark.parametrize("name", list(presets.PRESETS))
def test_every_preset_can_run_on_a_gpu(name: str) -> None:
    asked = values(**presets.PRESETS[name].values)
    assert presets.matching(asked) == name
    assert form_check.check(asked, GPU, 90).errors == {}
