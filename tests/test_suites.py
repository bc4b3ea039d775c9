"""Suites are data: their problems, who is in a cell, what words select, and what a device can do of it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kernels.architecture import ARCHITECTURES
from kernels.problem import TileConfig
from kernels.registry import PEERS, VERSIONS
from profiling.records import Job
from profiling.suites import ARTICLE_PAIRS, SUITES, choice_of, chosen, of_pair, planned, selected, suite, title_of
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
    assert {choice_of(name).name for name in found.versions} <= set(VERSIONS)
    assert [choice_of(name).spelled for name in found.versions] == list(found.versions)
    assert len({title_of(name) for name in found.versions}) == len(found.versions)
    assert all({match.version, *match.against} <= set(found.versions) for match in found.matches)
    for cell in found.cells:
        one = planned(found, cell, found.versions, H200)
        assert Job(job_id="x", requests=one.requests).requests == one.requests
        assert set(found.in_cell(cell)) <= set(found.versions)
        without_backward = [name for name in found.in_cell(cell) if not VERSIONS[choice_of(name).name].backwards]
        assert len(one.left_out) == (0 if cell.direction == "forward" else len(without_backward))
        assert len(one.names) == len(one.requests) == len(found.in_cell(cell)) - len(one.left_out)
    assert len({cell.words for cell in found.cells}) == len(found.cells), "words, and so a file, for each"


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


def test_the_fa2_paper_s_problems_are_its_tokens_its_head_dims_and_its_three_directions():
    paper = suite("fa2-paper")
    assert len(paper.cells) == 2 * 6 * 2 * 3
    for cell in paper.cells:
        problem = cell.problem
        assert problem.batch * problem.seq_len_q == 16384
        assert problem.num_heads * problem.head_dim == 2048
        assert not cell.precision.fp8
    assert len(selected(paper, "backward,d128,16k")) == 2
    assert len(selected(paper, "forward")) == len(selected(paper, "both")) == 24
    (cell,) = selected(paper, "both,d64,1k,causal")
    assert cell.title == "1,024 tokens · head_dim 64 · causal · bf16 · forward and backward"
    assert "-".join(cell.short) == "d64-1k-causal-bf16-both"


def test_a_cell_s_direction_and_the_tiles_of_its_backward_are_in_its_requests():
    paper = suite("fa2-paper")
    (cell,) = selected(paper, "backward,d128,4k,causal")
    one = planned(paper, cell, paper.versions, H200)
    assert {request.direction for request in one.requests} == {"backward"}
    by_name = dict(zip(one.names, one.requests, strict=True))
    assert by_name["v2"].backward_tiles is not None
    assert by_name["sdpa-flash"].backward_tiles is None
    assert "fa3" not in by_name
    assert any("fa3" in sentence for sentence in one.left_out)


def test_the_article_s_cells_have_its_problem_and_what_its_claims_need_in_one_job():
    found = suite("article")
    by_length = {cell.problem.seq_len_q: cell for cell in found.cells}
    assert set(by_length) == {512, 1024, 4096, 16384, 32768}
    for cell in found.cells:
        problem = cell.problem
        assert (problem.num_heads * problem.head_dim, problem.num_heads, problem.head_dim) == (512, 16, 32)
        assert not problem.causal
    table = ("native", "v1", "v2", "v3")
    assert all(set(table) <= set(by_length[length].versions) for length in (1024, 4096, 16384))
    assert {"v2", "v3", "v3-hopper", "v3@fp8=yes"} <= set(by_length[32768].versions)
    for length in (512, 1024, 4096, 16384):
        assert {name for pair in ARTICLE_PAIRS for name in of_pair(*pair)} <= set(by_length[length].versions)


def test_a_version_with_tiles_of_its_own_runs_with_them_and_is_only_proved_and_timed():
    found = suite("article")
    (cell,) = selected(found, "16k")
    one = planned(found, cell, found.versions, H200)
    by_name = dict(zip(one.names, one.requests, strict=True))
    wide = by_name["v2@block_m=32,block_n=512,num_warps=8,num_stages=2"]
    assert wide.tiles == TileConfig(block_m=32, block_n=512, num_warps=8, num_stages=2)
    assert wide.probes == ("accuracy", "latency")
    assert "memory" in by_name["v2"].probes
    assert by_name["v3@fp8=yes"].precision.fp8
    assert not by_name["v3"].precision.fp8
    assert title_of("v2@block_m=32,block_n=512,num_warps=8,num_stages=2") == "v2 32×512·w8·s2"
    assert title_of("v3@fp8=yes") == "v3 FP8"


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_no_pair_of_the_article_s_is_a_gpu_s_default_by_chance(capability):
    found = suite("article")
    device = H200.model_copy(update={"capability": capability})
    for cell in found.cells:
        requests = planned(found, cell, found.versions, device).requests
        assert len(set(requests)) == len(requests)


def test_kernel_takes_a_version_with_its_settings():
    found = suite("article")
    name = "v2@block_m=64,block_n=256,num_warps=4,num_stages=2"
    assert chosen(found, f"v2,{name}") == ("v2", name)
    with pytest.raises(ValueError, match=r"^kernel = v2@block_m=16 is not in article: it can be native, "):
        chosen(found, "v2@block_m=16")
