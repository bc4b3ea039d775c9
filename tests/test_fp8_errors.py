"""The taking apart against a flash loop written row by row with torch's own e4m3, and against kernels with planted faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling.bench import draw_inputs
from profiling.case import Case
from profiling.fp8_errors import Scales, Sums, fp8_errors, sums_by_tile
from profiling.record_types import Array
from profiling.records import RunRequest
from profiling.replay import Arithmetic, Block, Stored, replayed
from profiling.trace_record import ErrorPart, Fp8Errors, LimitCount, TileTrace
from tests.conftest import ROOT

BLOCK_N, HEAD_DIM = 32, 64
ARITHMETIC = Arithmetic.of("v3", Precision(fp8=True), "interpreted")


def e4m3(x: np.ndarray) -> np.ndarray:
    """torch's own rounding, saturated as the kernels do it."""
    rounded = torch.from_numpy(np.clip(x, -448.0, 448.0).astype(np.float32)).to(torch.float8_e4m3fn)
    return rounded.double().numpy()


@dataclass(frozen=True)
class Head:
    """One head before and after it was quantised: q, k, v and their codes times scales, float64. mean is off both K."""

    problem: AttentionProblem
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scales: Scales
    q_rounded: np.ndarray
    k_rounded: np.ndarray
    v_rounded: np.ndarray

    @staticmethod
    def of(seq_len: int = 160, causal: bool = False, bias: float = 0.0, smooth_k: bool = True, seed: int = 0) -> Head:
        rng = np.random.default_rng(seed)
        q, k, v = rng.standard_normal((3, seq_len, HEAD_DIM))
        k = k + bias * rng.standard_normal(HEAD_DIM)
        k = k - k.mean(0) if smooth_k else k
        scales = Scales(np.abs(q).max(1) / 448, np.abs(k).max(1) / 448, np.abs(v).max(0) / 448)
        problem = AttentionProblem(
            num_heads=1, num_kv_heads=1, seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=HEAD_DIM, causal=causal
        )
        return Head(problem, q, k, v, scales, q, k, v).rounded(scales)

    def rounded(self, scales: Scales) -> Head:
        """With other scales, as the quantised operands stand for it."""
        return replace(
            self, scales=scales, q_rounded=e4m3(self.q / scales.q[:, None]) * scales.q[:, None],
            k_rounded=e4m3(self.k / scales.k[:, None]) * scales.k[:, None], v_rounded=e4m3(self.v / scales.v) * scales.v,
        )  # fmt: skip

    @property
    def blocks(self) -> tuple[Block, Block]:
        """The unrounded inputs of all rows, and the rounded operands."""
        return (
            Block(self.problem, 0, self.q, lambda first, end: (self.k[first:end], self.v[first:end])),
            Block(self.problem, 0, self.q_rounded, lambda first, end: (self.k_rounded[first:end], self.v_rounded[first:end])),
        )

    @property
    def visited(self) -> int:
        return -(-self.problem.seq_len_kv // BLOCK_N)


def kernel(head: Head, shift: float = 256.0, acc_bits: int = 24, every: int = 1) -> Stored:
    """A flash loop in float32 on the rounded operands; acc_bits: significant bits that O keeps from tile to tile."""
    f = np.float32
    q, k, v = (x.astype(f) for x in (head.q_rounded, head.k_rounded, head.v_rounded))
    rows = len(q)
    m, l, acc = np.full(rows, -np.inf, f), np.zeros(rows, f), np.zeros((rows, HEAD_DIM), f)  # noqa: E741
    frames = []
    for first in range(0, len(k), BLOCK_N):
        scores = np.full((rows, BLOCK_N), -np.inf, f)
        keys = np.arange(first, min(first + BLOCK_N, len(k)))
        scores[:, : keys.size] = q @ k[keys].T * f(head.problem.sm_scale)
        if head.problem.causal:
            scores[:, : keys.size][keys[None, :] > np.arange(rows)[:, None]] = -np.inf
        risen = np.maximum(m, scores.max(1))
        alpha, p = np.exp(m - risen), np.exp(scores - risen[:, None])
        l = alpha * l + p.sum(1)  # noqa: E741
        acc = alpha[:, None] * acc + (e4m3(p * f(shift)) / shift).astype(f)[:, : keys.size] @ v[keys]
        fraction, exponent = np.frexp(acc)
        acc = np.ldexp(np.round(np.ldexp(fraction, acc_bits)), exponent - acc_bits).astype(f)
        m = risen
        frames.append((scores, m, l, alpha, acc))
    kept = slice((len(frames) - 1) % every, None, every)
    scores, m, l, alpha, acc = (np.stack(values)[kept] for values in zip(*frames, strict=True))  # noqa: E741
    output = (acc[-1] / l[-1][:, None]).astype(np.float32)
    return Stored(np.arange(len(frames))[kept], scores, m, l, alpha, acc, None, output)


def apart(head: Head, stored: Stored, arithmetic: Arithmetic = ARITHMETIC) -> Fp8Errors:
    return fp8_errors(*head.blocks, head.scales, arithmetic, stored, len(head.q), head.visited)


def sums_of(head: Head, stored: Stored) -> Sums:
    return sums_by_tile(*head.blocks, head.scales, ARITHMETIC, stored, head.visited)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def dense(head: Head, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """The scores of all rows and keys at once."""
    scores = q @ k.T * head.problem.sm_scale
    if head.problem.causal:
        scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -np.inf)
    return scores


def with_p_rounded(head: Head) -> np.ndarray:
    """O of the rounded operands, a row at a time: P beside the maximum so far, by torch's e4m3, and exact sums."""
    scores = dense(head, head.q_rounded, head.k_rounded)
    out = np.zeros_like(head.q)
    for row, of_row in enumerate(scores):
        so_far = np.maximum.accumulate(of_row)
        ends = np.minimum(np.arange(len(of_row)) // BLOCK_N * BLOCK_N + BLOCK_N - 1, len(of_row) - 1)
        m = so_far[ends]
        p = e4m3(np.exp(of_row - m) * 256) / 256 * np.exp(m - of_row.max())
        out[row] = p @ head.v_rounded / np.exp(of_row - of_row.max()).sum()
    return out


def largest(difference: np.ndarray) -> float:
    return float(np.abs(difference).max())


@pytest.mark.parametrize(("seq_len", "causal"), [(160, False), (150, True)])
def test_the_parts_add_up_and_each_is_what_it_says(seq_len, causal):
    head = Head.of(seq_len, causal)
    stored = kernel(head)
    found = sums_of(head, stored)
    kernels_o = stored.acc[-1].astype(float) / stored.l[-1].astype(float)[:, None]
    # float64 sums of some hundred terms of about 1.
    exact, by_qk = softmax(dense(head, head.q, head.k)) @ head.v, softmax(dense(head, head.q_rounded, head.k_rounded)) @ head.v
    assert largest(found.exact.sum(0) - exact) < 1e-13
    assert largest(found.parts["qk"].sum(0) - (by_qk - exact)) < 1e-13
    # A weight of P on a midpoint of e4m3 may go either way where exp differs in its last bit.
    assert largest(found.parts["pv"].sum(0) - (with_p_rounded(head) - by_qk)) < 1e-6
    assert largest(found.kernel.sum(0) - kernels_o) < 1e-13
    added = found.exact + sum(found.parts.values())
    assert largest(added - found.kernel) < 1e-13
    assert largest(exact + sum(part.sum(0) for part in found.parts.values()) - kernels_o) < 1e-13


def test_accumulation_is_within_what_float32_may_lose():
    head = Head.of(150, causal=True)
    stored = kernel(head)
    *_, (_, last) = replayed(head.blocks[1], ARITHMETIC, BLOCK_N, head.visited)
    o = np.abs(stored.acc[-1] / stored.l[-1][:, None])
    bound = (last.acc.bound + o * last.l.bound[:, None]) / (stored.l[-1] - last.l.bound)[:, None]
    found = sums_of(head, stored).parts["accumulation"].sum(0)
    assert (np.abs(found) <= bound + 1e-13).all()
    assert 0 < apart(head, stored).accumulation.error < 1e-5


def test_the_record_holds_the_norms_and_shares():
    head = Head.of(150, causal=True)
    stored = kernel(head)
    sums, record = sums_of(head, stored), apart(head, stored)
    exact, whole = sums.exact.sum(0), (sums.kernel - sums.exact).sum(0)
    norm = np.linalg.norm(exact)
    for name, part in sums.parts.items():
        found: ErrorPart = getattr(record, name)
        assert found.error == pytest.approx(np.linalg.norm(part.sum(0)) / norm, rel=1e-12)
        assert found.share == pytest.approx((part.sum(0) * whole).sum() / (whole**2).sum(), rel=1e-9, abs=1e-15)
        by_tile = np.linalg.norm(part, axis=2) / (norm / np.sqrt(len(exact)))
        np.testing.assert_allclose(found.by_tile.numpy(), by_tile, rtol=2e-7, atol=1e-30)
    assert record.whole.error == pytest.approx(np.linalg.norm(whole) / norm, rel=1e-12)
    assert sum(part.share for part in record.parts) == pytest.approx(1.0, abs=1e-12)
    assert record.whole.share == 1.0
    assert record.output_error < 2.0**-23


def test_what_e4m3_holds_exactly_costs_nothing():
    head = Head.of()
    ones = Scales(np.ones(160), np.ones(160), np.ones(HEAD_DIM))
    grid = np.random.default_rng(3).choice([-1.0, -0.5, 0.0, 0.5, 1.0], (3, 160, HEAD_DIM))
    head = replace(head, q=grid[0], k=grid[1], v=grid[2]).rounded(ones)
    record = apart(head, kernel(head))
    assert record.qk.error == 0.0
    assert record.qk.share == 0.0
    assert record.pv.share == pytest.approx(1.0, abs=1e-3), "P is rounded still"


# Planted faults


def test_a_wrong_scale_of_k_is_seen_as_q_and_k():
    head = Head.of()
    wrong = replace(head, k_rounded=head.k_rounded * 1.25)
    record, right = apart(wrong, kernel(wrong)), apart(head, kernel(head))
    assert record.qk.share > 0.9
    assert record.qk.error > 3 * right.qk.error
    assert record.pv.error < 1.5 * right.pv.error
    assert record.accumulation.error < 1e-5


def test_a_wrong_scale_of_v_is_seen_as_p_and_v():
    head = Head.of()
    wrong = replace(head, v_rounded=head.v_rounded * 1.25)
    record, right = apart(wrong, kernel(wrong)), apart(head, kernel(head))
    assert record.pv.share > 0.9
    assert record.qk.error == right.qk.error
    assert record.accumulation.error < 1e-5


def test_a_dropped_mean_of_k_is_seen_as_q_and_k():
    with_mean, without = (Head.of(bias=3.0, smooth_k=smooth_k) for smooth_k in (False, True))
    record, smoothed = apart(with_mean, kernel(with_mean)), apart(without, kernel(without))
    assert record.qk.share > 0.8 > smoothed.qk.share
    # K's steps are about sqrt(1 + 3²) times as wide; P and V do not know of it.
    assert record.qk.error > 1.7 * smoothed.qk.error
    assert record.pv.error == pytest.approx(smoothed.pv.error, rel=0.1)


def with_a_sink() -> Head:
    """The first key has the score 6 with every query and nothing in V: O is made of weights of about e⁻⁶, which without a
    shift are e4m3's very last steps."""
    head = Head.of()
    q, k, v = head.q.copy(), 0.3 * head.k, head.v.copy()
    q[:, 0], k[:, 0], k[0], v[0] = 4.0, 0.0, 0.0, 0.0
    k[0, 0] = 6.0 / head.problem.sm_scale / 4.0
    return replace(head, q=q, k=k, v=v).rounded(Scales(np.abs(q).max(1) / 448, np.abs(k).max(1) / 448, head.scales.v))


def test_p_without_its_shift_is_seen_as_p_and_v():
    head = with_a_sink()
    unshifted = Shifted(**vars(ARITHMETIC), by=1.0)
    right, wrong = apart(head, kernel(head)), apart(head, kernel(head, shift=1.0), unshifted)
    assert wrong.pv.error > 2 * right.pv.error
    assert wrong.pv.share > right.pv.share
    assert wrong.accumulation.error < 1e-5
    assert wrong.qk.error == right.qk.error


def test_a_shift_that_the_arithmetic_does_not_name_is_no_rounding_of_operands():
    head = with_a_sink()
    record = apart(head, kernel(head, shift=1.0))
    assert record.accumulation.share == max(part.share for part in record.parts)


@dataclass(frozen=True)
class Shifted(Arithmetic):
    """An arithmetic that multiplies P by another power of two."""

    by: float = 1.0

    @property
    def shift(self) -> float:
        return self.by


def test_an_accumulator_of_few_bits_is_seen_as_accumulation():
    head = Head.of()
    record, right = apart(head, kernel(head, acc_bits=5)), apart(head, kernel(head))
    assert record.accumulation.error > 1e4 * right.accumulation.error
    assert record.qk.error == right.qk.error
    assert record.pv.error == right.pv.error
    assert apart(head, kernel(head, acc_bits=3)).accumulation.share > 0.5


def test_a_wrong_scale_of_one_key_is_seen_in_its_tile():
    head = Head.of()
    wrong = head.k_rounded.copy()
    wrong[70] *= 3.0
    head = replace(head, k_rounded=wrong)
    by_tile = (apart(head, kernel(head)).qk.by_tile.numpy() ** 2).sum(1)
    assert by_tile.argmax() == 70 // BLOCK_N


# Counts, samples, blocks without tiles


def test_values_at_the_limit_and_clipped_ones_are_counted():
    head = Head.of(150)
    record = apart(head, kernel(head))
    assert record.q.at_limit == int((np.abs(e4m3(head.q / head.scales.q[:, None])) == 448).sum()) >= 150
    assert record.v.at_limit == int((np.abs(e4m3(head.v / head.scales.v)) == 448).sum()) >= HEAD_DIM
    by_key = (np.abs(e4m3(head.k / head.scales.k[:, None])) == 448).sum(1)
    assert record.k.by_tile.numpy().tolist() == [int(by_key[start : start + BLOCK_N].sum()) for start in range(0, 150, BLOCK_N)]
    assert [count.clipped for count in (record.q, record.k, record.v, record.p)] == [0, 0, 0, 0]
    assert (record.k.values, record.p.values, record.p.at_limit) == (150 * HEAD_DIM, 150 * 150, 0)
    narrow = head.rounded(replace(head.scales, k=head.scales.k / 2))
    clipped = apart(narrow, kernel(narrow)).k
    assert clipped.clipped == int((np.abs(head.k / narrow.scales.k[:, None]) > 464).sum()) > 150


def test_a_shift_too_large_for_p_is_seen_as_clipped():
    head = Head.of()
    too_far = Shifted(**vars(ARITHMETIC), by=1024.0)
    record = apart(head, kernel(head, shift=1024.0), too_far)
    assert record.p.clipped > 0
    assert record.p.at_limit == record.p.by_tile.numpy().sum()


def test_a_stored_tile_stands_for_those_left_out_before_it():
    head = Head.of(200)
    whole, sampled = (sums_of(head, kernel(head, every=every)) for every in (1, 3))
    groups = [[0], [1, 2, 3], [4, 5, 6]]
    for name in ("exact", "rounded_qk", "rounded", "kernel"):
        expected = [getattr(whole, name)[group].sum(0) for group in groups]
        assert largest(getattr(sampled, name) - np.stack(expected)) < 1e-13, name
    assert sampled.at_limit.sum(1).tolist() == whole.at_limit.sum(1).tolist()


def test_rows_and_blocks_that_see_nothing_have_no_error():
    problem = AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=64, seq_len_kv=32, head_dim=HEAD_DIM, causal=True)
    head = replace(Head.of(32), problem=problem)
    q, q_rounded = np.vstack([head.q, head.q]), np.vstack([head.q_rounded, head.q_rounded])
    head = replace(head, q=q, q_rounded=q_rounded, scales=replace(head.scales, q=np.tile(head.scales.q, 2)))
    nothing = Stored(
        np.zeros(0, int), np.zeros((0, 64, BLOCK_N)), *(np.zeros((0, 64)) for _ in "mla"), np.zeros((0, 64, HEAD_DIM)), None,
        np.zeros((64, HEAD_DIM)),
    )  # fmt: skip
    record = fp8_errors(*head.blocks, head.scales, ARITHMETIC, nothing, 64, 0)
    assert (record.whole.error, record.whole.share, record.k.values) == (0.0, 0.0, 0)
    assert record.whole.by_tile.shape == (0, 64)


# The record


def test_the_record_refuses_what_does_not_add_up():
    head = Head.of()
    record = apart(head, kernel(head))
    with pytest.raises(ValueError, match="do not add up"):
        Fp8Errors(**dict(record) | {"qk": record.qk.model_copy(update={"share": 0.1})})
    with pytest.raises(ValueError, match="shape of the whole"):
        Fp8Errors(**dict(record) | {"qk": record.qk.model_copy(update={"by_tile": Array.of(np.zeros((1, 2)), "<f4")})})
    with pytest.raises(ValueError, match="0 or more"):
        ErrorPart(error=0.1, share=1.0, by_tile=Array.of([[-1.0]], "<f4"))
    with pytest.raises(ValueError, match="not possible"):
        LimitCount(values=3, at_limit=4, clipped=0)
    with pytest.raises(ValueError, match="add up to all of them"):
        LimitCount(values=9, at_limit=4, clipped=0, by_tile=Array.of([1, 2], "<i4"))


# The kernel itself


REQUEST = RunRequest(
    kernel="v3", precision=Precision(fp8=True), tiles=TileConfig(block_m=32, block_n=32, num_warps=4, num_stages=2),
    problem=AttentionProblem(num_heads=1, num_kv_heads=1, seq_len_q=40, seq_len_kv=100, head_dim=32, causal=True),
)  # fmt: skip
FAULTS = (None, "k scale")


@pytest.fixture(scope="module")
def traces() -> dict[str | None, TileTrace]:
    """REQUEST in Triton's interpreter, traced, by the fault that was planted in its operands."""
    questions = [json.dumps({"request": REQUEST.model_dump(mode="json"), "fault": fault}) for fault in FAULTS]
    child = subprocess.run(
        [sys.executable, "-m", "tests.traced_attention"], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"},
        input="\n".join(questions) + "\n", capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    answers = [json.dumps(json.loads(line)["trace"]) for line in child.stdout.splitlines()]
    return dict(zip(FAULTS, map(TileTrace.model_validate_json, answers), strict=True))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernels_error_is_that_beside_float64(traces, fault):
    request, trace = REQUEST, traces[fault]
    problem, record = request.problem, trace.fp8_errors
    q, k, v = (tensor[0, 0].double().numpy() for tensor in draw_inputs(Case(0, request), torch.device("cpu")))
    scores = q[32:] @ k.T * problem.sm_scale
    exact = softmax(np.where(np.arange(100) > np.arange(92, 100)[:, None], -np.inf, scores)) @ v
    found = trace.acc.numpy()[-1, :8] / trace.l.numpy()[-1, :8, None].astype(float)
    # The record holds O in float16.
    assert record.whole.error == pytest.approx(np.linalg.norm(found - exact) / np.linalg.norm(exact), abs=2.0**-11)
    assert trace.replay.passed, "it is right for the operands it was given"
    assert record.accumulation.error < 1e-5
    assert record.output_error < 2.0**-8
    assert record.qk.share > 0.9 if fault else record.qk.error < 0.06
    assert (record.q.values, record.k.values, record.p.values) == (8 * 32, 100 * 32, sum(range(93, 101)))
    assert not record.whole.by_tile.numpy()[:, 8:].any()
