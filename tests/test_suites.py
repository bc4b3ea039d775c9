"""Suites are data: their problems, who is in a cell, what words select, and what a device can do of it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kernels.problem import TileConfig
from kernels.registry import PEERS, VERSIONS
from profiling.records import Job
from profiling.suites import SUITES, chosen, planned, selected, suite
from tests import records_for_tests as made_up

PAPER = suite("fa3-paper")
H200 = made_up.gpu()
A100 = H200.model_copy(update={"id": "GPU-a100", "name": "NVIDIA A100", "capability": 80})


def test_the_paper_s_problems_have_its_tokens_its_hidden_size_and_all_combinations():
    assert len(PAPER.cells) == len({cell.words for cell in PAPER.cells}) == 3 * 6 * 2 * 2
    for cell in PAPER.cells:
        problem = cell.problem
        assert problem.batch * problem.seq_len_q == problem.batch * problem.seq_len_kv == 16384
        assert problem.num_heads * problem.head_dim == problem.num_kv_heads * problem.head_dim == 2048
    assert {cell.problem.seq_len_q for cell in PAPER.cells} == {512, 1024, 2048, 4096, 8192, 16384}
    assert {cell.problem.head_dim for cell in PAPER.cells} == {64, 128, 256}
    assert all(set(match.against) <= set(PEERS) for match in PAPER.matches)


@pytest.mark.parametrize("found", SUITES.values(), ids=SUITES)
def test_every_suite_is_of_the_registry_and_fits_a_job(found):
    assert set(found.versions) <= set(VERSIONS)
    assert all({match.version, *match.against} <= set(found.versions) for match in found.matches)
    for cell in found.cells:
        one = planned(found, cell, found.versions, H200)
        assert Job(job_id="x", requests=one.requests).requests == one.requests
        assert one.left_out == ()


def test_hopper_s_own_kernel_is_in_the_suite_once_the_registry_has_it():
    assert ("v3-hopper" in PAPER.versions) == ("v3-hopper" in VERSIONS)


@pytest.mark.parametrize(
    ("only", "count"),
    [
        (None, 72),
        ("", 72),
        ("d128", 24),
        ("d64,d128", 48),
        ("D128, 16k, causal", 2),
        ("d128,16k,causal,fp8", 1),
        ("full,bf16", 18),
        ("d64,d128,d256,1k,4k,16k,bf16", 18),
    ],
)
def test_words_of_one_kind_widen_and_of_two_kinds_narrow(only, count):
    found = selected(PAPER, only)
    assert len(found) == count
    for cell in found:
        assert not only or all(set(kind).isdisjoint(_words(only)) or set(kind) & _words(only) & set(cell.words)
                               for kind in PAPER.vocabulary)  # fmt: skip


def _words(only: str) -> set[str]:
    return set(only.lower().replace(" ", "").split(","))


def test_a_run_s_tag_is_told_from_other_tags():
    tag = PAPER.run_tag(datetime(2026, 11, 29, 14, 10, tzinfo=timezone(timedelta(hours=1))))
    assert tag == "fa3-paper-20261129-131000"
    assert PAPER.run_tags(("fa3-paper", "fa3-paper-nightly", tag, f"x{tag}")) == (tag,)


def test_what_a_suite_does_not_have_is_one_sentence():
    with pytest.raises(
        ValueError, match=r"^only = 32k is not possible with fa3-paper: it can be d64, .*16k, full, causal, bf16"
    ):
        selected(PAPER, "d64,32k")
    with pytest.raises(ValueError, match=r"^suite = fa4 is not known: it can be fa3-paper"):
        suite("fa4")
    with pytest.raises(ValueError, match=r"^kernel = v1 is not in fa3-paper: it can be v2, "):
        chosen(PAPER, "v2,v1")
    assert chosen(PAPER, "fa3, v2,fa3") == ("fa3", "v2")


def test_an_fp8_cell_has_the_versions_that_have_fp8_each_with_its_own_scales():
    (cell,) = selected(PAPER, "d128,16k,causal,fp8")
    found = {request.kernel: request for request in planned(PAPER, cell, PAPER.versions, H200).requests}
    assert set(found) == {name for name in PAPER.versions if VERSIONS[name].has_fp8}
    assert all(request.precision.fp8 for request in found.values())
    assert (found["v3"].precision.fp8_scale, found["fa3"].precision.fp8_scale) == ("token", "head")


def test_requests_name_their_tiles_and_ask_for_the_proof_and_the_time():
    (cell,) = selected(PAPER, "d64,1k,causal,bf16")
    by_name = {request.kernel: request for request in planned(PAPER, cell, ("v2", "flex"), H200).requests}
    assert isinstance(by_name["v2"].tiles, TileConfig)
    assert by_name["flex"].tiles is None
    assert {request.probes for request in by_name.values()} == {("accuracy", "latency")}
    assert {request.device for request in by_name.values()} == {H200.id}


def test_what_a_gpu_cannot_do_is_left_out_with_its_reason():
    (cell,) = selected(PAPER, "d128,16k,causal,fp8")
    one = planned(PAPER, cell, PAPER.versions, A100)
    assert one.requests == ()
    assert any("sm_80" in sentence for sentence in one.left_out)
