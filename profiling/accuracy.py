"""The proof: an output against a float64 reference of the same job, and how far off rounding alone may put it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernels.kernel import Operands
from kernels.peers import HeadScaled
from kernels.problem import AttentionProblem, Precision
from kernels.reference import reference
from profiling.oracle_budget import reference_budget, rows_within
from profiling.record_types import Provenance
from profiling.records import Accuracy

# Largest relative error of one rounding to nearest, 2^-(significand bits): 8 for bf16, 11 for fp16, 4 for e4m3.
UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp8": 2.0**-4}
# No output of a fused kernel on N(0, 1) inputs may be further off than this, whatever the derivation allows.
MOST_ALLOWED = {"bf16": 4e-3, "fp16": 5e-4, "fp8": 4e-2}
# FP8 products are cut to so much of the running sum inside Hopper's matrix units (DeepSeek-V3, section 3.5.2).
_MATRIX_UNIT_CUT = 2.0**-13
_ROW_BLOCK = 128
_SQUARES_ELEMENTS = 1 << 24  # of a float64 block of scores, 128 MiB


@dataclass(frozen=True)
class Reference:
    """out (batch, num_heads, rows, head_dim) and lse (batch, num_heads, rows), float64; rows None means all."""

    out: torch.Tensor
    lse: torch.Tensor
    rows: torch.Tensor | None


def check(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    problem: AttentionProblem,
    precision: Precision,
    provenance: Provenance,
    kernel: str = "",
    operands: Operands | None = None,
    exact: Reference | None = None,
) -> Accuracy:
    """Compare a kernel's out and lse with the reference of q, k and v.

    operands is what prepare() made of them: with FP8 the kernel answers for those. exact is reference_of(q, k, v), where
    a job has it already. lse None is noted, not failed.
    """
    expected = (problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim)
    if tuple(out.shape) != expected:
        return _wrong_shape(
            f"out has shape {tuple(out.shape)}, the problem asks for {expected}", out, problem, precision, provenance
        )
    exact = reference_of(q, k, v, problem) if exact is None else exact
    own = exact if not _is_quantised(operands) else _reference_of_operands(operands, problem, exact.rows)
    missing: dict[str, str] = {}
    relative, largest = _out_error(out, own, missing)
    end_to_end = _out_error(out, exact, {})[0] if own is not exact else None
    lse_error = _lse_error(lse, own, missing)
    reads_scores = kernel == "native" or own is not exact
    bound = allowed(problem, precision, kernel, score_squares(q, k, problem) if reads_scores else _OF_NORMAL_INPUTS)
    lse_bound = None if lse is None else allowed_lse_error(q, k, problem, precision, kernel)
    non_finite = int((~torch.isfinite(out)).sum()) + (0 if lse is None else int((torch.isnan(lse) | (lse == math.inf)).sum()))
    passed = (
        non_finite == 0
        and _within(relative, bound.relative_error)
        and (lse is None or _within(lse_error, lse_bound))
        and (own is exact or _within(end_to_end, bound.end_to_end_error))
    )
    return Accuracy(
        provenance=provenance,
        relative_error=relative,
        max_abs_error=largest,
        allowed_relative_error=bound.relative_error,
        allowed_because=bound.because,
        lse_max_abs_error=lse_error,
        allowed_lse_error=lse_bound,
        non_finite=non_finite,
        rows_checked=problem.seq_len_q if exact.rows is None else exact.rows.numel(),
        rows_total=problem.seq_len_q,
        passed=passed,
        end_to_end_relative_error=end_to_end,
        allowed_end_to_end_error=None if own is exact else bound.end_to_end_error,
        missing=missing,
    )


def _within(error: float | None, bound: float | None) -> bool:
    return error is not None and bound is not None and error <= bound


def _wrong_shape(
    sentence: str, out: torch.Tensor, problem: AttentionProblem, precision: Precision, provenance: Provenance
) -> Accuracy:
    bound = allowed(problem, precision)
    return Accuracy(
        provenance=provenance,
        relative_error=None,
        max_abs_error=None,
        allowed_relative_error=bound.relative_error,
        allowed_because=bound.because,
        lse_max_abs_error=None,
        allowed_lse_error=None,
        non_finite=int((~torch.isfinite(out)).sum()),
        rows_checked=0,
        rows_total=problem.seq_len_q,
        passed=False,
        missing=dict.fromkeys(("relative_error", "max_abs_error", "lse_max_abs_error"), sentence),
    )


# Which rows


def rows_to_check(problem: AttentionProblem, budget: float, seed: int) -> torch.Tensor | None:
    """The query rows that fit the budget, sorted, or None for all: first, last, block boundaries, then random ones."""
    count = rows_within(problem, budget)
    if count == problem.seq_len_q:
        return None
    generator = torch.Generator().manual_seed(seed)
    starts = torch.arange(_ROW_BLOCK, problem.seq_len_q, _ROW_BLOCK)
    starts = starts[torch.randperm(starts.numel(), generator=generator)][: count // 4]
    chosen = torch.cat([torch.tensor([0, problem.seq_len_q - 1]), starts - 1, starts])
    others = torch.ones(problem.seq_len_q, dtype=torch.bool)
    others[chosen] = False
    candidates = others.nonzero().flatten()
    extra = candidates[torch.randperm(candidates.numel(), generator=generator)][: count - chosen.unique().numel()]
    return torch.cat([chosen, extra]).unique()


def capability_of(tensor: torch.Tensor) -> int | None:
    """The compute capability of the GPU that a tensor is on, None on the CPU."""
    if not tensor.is_cuda:
        return None
    major, minor = torch.cuda.get_device_capability(tensor.device)
    return major * 10 + minor


def reference_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: AttentionProblem, seed: int = 0) -> Reference:
    """The float64 reference on q's device, of all rows or as many as the device's budget allows."""
    rows = rows_to_check(problem, reference_budget(capability_of(q)), seed)
    rows = None if rows is None else rows.to(q.device)
    return Reference(*reference(q, k, v, problem, rows), rows)


def _is_quantised(operands: Operands | None) -> bool:
    return operands is not None and operands.q_scale is not None


def _reference_of_operands(operands: Operands, problem: AttentionProblem, rows: torch.Tensor | None) -> Reference:
    """The reference of what the FP8 codes and their scales stand for, with K's mean given back to the lse."""
    if isinstance(operands, HeadScaled):
        return Reference(*reference(*operands.dequantized(), problem, rows), rows)
    # The module imports Triton, which everything without FP8 does without.
    from kernels.quantize import dequantize

    out, lse = reference(*dequantize(operands, problem.seq_len_kv), problem, rows)
    if operands.lse_shift is not None:
        lse = lse + (operands.lse_shift if rows is None else operands.lse_shift[..., rows])
    return Reference(out, lse, rows)


# How far off it is


def _out_error(out: torch.Tensor, expected: Reference, missing: dict[str, str]) -> tuple[float | None, float | None]:
    """(‖out − ref‖ / ‖ref‖, largest absolute error), a batch entry at a time so that float64 copies stay small."""
    error_squared = norm_squared = largest = 0.0
    for batch in range(out.shape[0]):
        rows = out[batch] if expected.rows is None else out[batch][:, expected.rows]
        difference = rows.double() - expected.out[batch]
        error_squared += float(difference.square().sum())
        norm_squared += float(expected.out[batch].square().sum())
        largest = max(largest, float(difference.abs().max())) if not math.isnan(largest) else largest
    if not math.isfinite(error_squared) or not math.isfinite(largest):
        reason = "the output holds NaN or infinity"
        missing.update(relative_error=reason, max_abs_error=reason)
        return None, None
    if norm_squared == 0.0:
        if error_squared == 0.0:
            return 0.0, 0.0
        missing["relative_error"] = "the reference is 0 everywhere, and the output is not"
        return None, largest
    return math.sqrt(error_squared / norm_squared), largest


def _lse_error(lse: torch.Tensor | None, expected: Reference, missing: dict[str, str]) -> float | None:
    if lse is None:
        missing["lse_max_abs_error"] = "this kernel gives no log-sum-exp when it is timed"
        return None
    if tuple(lse.shape) != (*expected.out.shape[:2], lse.shape[-1]) or lse.dim() != 3:
        missing["lse_max_abs_error"] = f"lse has shape {tuple(lse.shape)}"
        return None
    found = (lse if expected.rows is None else lse[..., expected.rows]).double()
    if found.shape != expected.lse.shape:
        missing["lse_max_abs_error"] = f"lse has shape {tuple(lse.shape)}"
        return None
    sees_nothing = expected.lse == -math.inf
    if not torch.equal(sees_nothing, found == -math.inf):
        missing["lse_max_abs_error"] = "lse must be −inf exactly where a query sees no key, and is not"
        return None
    difference = torch.where(sees_nothing, 0.0, found - expected.lse).abs().max()
    if not math.isfinite(float(difference)):
        missing["lse_max_abs_error"] = "lse holds NaN or infinity"
        return None
    return float(difference)


# How far off it may be


@dataclass(frozen=True)
class Allowed:
    """A tolerance and its derivation; end_to_end_error counts the quantisation of the inputs too (FP8)."""

    relative_error: float
    end_to_end_error: float | None
    because: str


@dataclass(frozen=True)
class ScoreSquares:
    """Means over the scores that carry weight in the output: of s², and of Σ q_d² k_d² sm_scale², which a rounding of Q moves.

    The defaults are those of N(0, 1) inputs: squared weights e^{2s} tilt s to the mean 2 and the variance 1.
    """

    scores: float = 5.0
    products: float = 1.0


_OF_NORMAL_INPUTS = ScoreSquares()


def _moved(weights: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Of each row, the expected square of Σ w (ε - Σ w ε) v, for independent ε of these variances and v of variance 1.

    The softmax takes off what all its scores have in common: one weight that is nearly all hardly moves.
    """
    common = (weights.square() * variance).sum(dim=1, keepdim=True)
    return (weights.square() * (variance * (1.0 - 2.0 * weights) + common)).sum(dim=1)


def sampled_rows(problem: AttentionProblem, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, how many rows each stands for, float64): evenly spread, or when causal half of them ever denser towards the row
    that sees one key, as the few rows that see little have nearly all of ‖out‖²."""
    last = problem.seq_len_q - 1
    # Rows before it see nothing, and have no share.
    first = min(last, max(0, problem.seq_len_q - problem.seq_len_kv)) if problem.causal else 0
    rows = torch.linspace(first, last, min(count, last - first + 1))
    if problem.causal and count < last - first + 1:
        denser = first - 1 + torch.logspace(0, math.log10(last - first + 1), count - count // 2)
        rows = torch.cat([rows[::2], denser])
    rows = rows.round().long().unique()
    middles = (rows[1:] + rows[:-1]).double() / 2
    edges = torch.cat([torch.tensor([first - 0.5]), middles, torch.tensor([last + 0.5])])
    return rows, edges.diff()


def score_squares(q: torch.Tensor, k: torch.Tensor, problem: AttentionProblem) -> ScoreSquares:
    """Read off the scores of some rows (up to 64 of up to 16 heads), in float64.

    A row's share in ‖out‖² is its Σ w², and what errors ε of its scores move out by is Σ w (ε - Σ w ε) v; see _moved.
    """
    rows, stands_for = sampled_rows(problem, max(1, min(64, problem.seq_len_q, _SQUARES_ELEMENTS // problem.seq_len_kv)))
    rows, stands_for = rows.to(q.device), stands_for.to(q.device)
    heads = problem.batch * problem.num_heads
    group = problem.num_heads // problem.num_kv_heads
    total = scores = products = 0.0
    for head in torch.linspace(heads - 1, 0, min(16, heads)).round().long().tolist():
        queries = q.flatten(0, 1)[head, rows].double() * problem.sm_scale
        keys = k[head // problem.num_heads, head % problem.num_heads // group].double()
        s = queries @ keys.T
        if problem.causal:
            last_seen = rows + (problem.seq_len_kv - problem.seq_len_q)
            s.masked_fill_(torch.arange(problem.seq_len_kv, device=q.device)[None, :] > last_seen[:, None], -math.inf)
        weights = torch.softmax(s, dim=1).nan_to_num_(0.0)
        total += float(stands_for @ weights.square().sum(dim=1))
        scores += float(stands_for @ _moved(weights, s.masked_fill(weights == 0.0, 0.0).square_()))
        products += float(stands_for @ _moved(weights, queries.square() @ keys.square().T))
    return ScoreSquares(scores / total, products / total) if total else ScoreSquares()


def allowed(
    problem: AttentionProblem, precision: Precision, kernel: str = "", squares: ScoreSquares = _OF_NORMAL_INPUTS
) -> Allowed:
    """The relative error that rounding alone can explain, for values of V that are independent with mean 0.

    A rounding to nearest errs evenly over half a unit in the last place: root mean square u / √3 of the value at most.
    One rounding of P moves out as much as one of out itself, relative to its norm, as errors are independent over the
    keys: independent roundings add as squares. S rounded (native) errs by δ·s in an exponent: squares.scores times as
    much. Q and K rounded to e4m3 each err by Σ δ_d q_d k_d there: squares.products times as much, each. A scale a head
    changes nothing in that: e4m3 is a floating-point format, whose relative error is the same under every scale that
    keeps the values above 2⁻⁶, 1 / 28,672 of the largest. FA3 keeps its sum over all keys in the matrix units: each
    product is cut to 13 bits below the sum, which has grown by √n of them, so n cuts of 2⁻¹³ √n / √3 or less of a product
    add up to 2⁻¹³ √(n / 3) of out. A root mean square over n rows scatters by 1 / (2 √n), and three times that is allowed.
    """
    scatter = 1.0 + 1.5 / math.sqrt(problem.batch * problem.num_heads * problem.seq_len_q)
    u = UNIT_ROUNDOFF[precision.dtype]
    if precision.fp8:
        u8 = UNIT_ROUNDOFF["fp8"]
        cut = _MATRIX_UNIT_CUT**2 * problem.seq_len_kv if kernel == "fa3" else 0.0
        own = scatter * math.sqrt((u8**2 + u**2 + cut) / 3)
        whole = scatter * math.sqrt(((2 + 2 * squares.products) * u8**2 + u**2 + cut) / 3)
        summed = ", and the sum over all keys is cut to 13 bits a product" if cut else ""
        because = (
            f"P is rounded to e4m3 (half a unit is 2⁻⁴) and the output to {precision.dtype}, each by at most u / √3 root mean "
            f"square{summed}; "
            f"V rounded to e4m3 adds one such term to the end-to-end error, Q and K {squares.products:.2g} each."
        )
        return Allowed(min(own, MOST_ALLOWED["fp8"]), whole, because)
    exponent = int(-math.log2(u))
    superscript = str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    unit = f"{precision.dtype}, half a unit 2⁻{superscript}, at most u / √3 root mean square each"
    if kernel == "native":
        root = math.sqrt(squares.scores)
        because = f"S, P and the output are rounded ({unit}); S stands in an exponent, where its error counts {root:.2g} times."
        return Allowed(scatter * math.sqrt((squares.scores + 2.0) / 3) * u, None, because)
    because = f"P is rounded before P V and the output once more ({unit}); the two add as squares."
    return Allowed(min(scatter * math.sqrt(2 / 3) * u, MOST_ALLOWED[precision.dtype]), None, because)


def allowed_lse_error(
    q: torch.Tensor, k: torch.Tensor, problem: AttentionProblem, precision: Precision, kernel: str = ""
) -> float:
    """The absolute error that the arithmetic can put on lse: it moves by no more than the worst score does.

    Scores are at most S = max‖q‖ max‖k‖ sm_scale (Cauchy-Schwarz). float32 sums lose at most 2⁻²³ of it at each of
    head_dim additions (matrix units truncate), and a few more in exp2 and log2; FP8 sums on Hopper keep about 14 bits
    over blocks of 32 (DeepSeek-V3 report, arXiv 2412.19437, section 3.5.2). native takes lse from S as rounded.
    """
    score = float(q.float().norm(dim=-1).max() * k.float().norm(dim=-1).max()) * problem.sm_scale
    bound = (problem.head_dim + 16) * 2.0**-23 * (score + 1.0)
    if precision.fp8:
        bound += (problem.head_dim / 32 + 1) * 2.0**-13 * score
    if kernel == "native":
        bound += UNIT_ROUNDOFF[precision.dtype] * score
    return bound
