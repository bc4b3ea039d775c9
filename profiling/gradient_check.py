"""The proof of a backward: dq, dk and dv against float64 ones of the same job, and how far off rounding alone may put them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from kernels.kernel import AttentionOutput, Gradients
from kernels.problem import AttentionProblem, Precision
from kernels.reference import reference_gradients
from kernels.registry import VERSIONS
from profiling.accuracy import UNIT_ROUNDOFF, capability_of, sampled_rows
from profiling.backward_record import NAMES, GradientAccuracy, GradientError
from profiling.oracle_budget import heads_within, reference_budget, refuse_gradients
from profiling.record_types import Provenance

_MOST_SAMPLED_HEADS = 16
_SAMPLED_ROWS = 64
_SAMPLED_ELEMENTS = 1 << 24  # of a float64 block of scores, 128 MiB

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class GradientReference:
    """Float64 gradients of some key-value heads: dq (heads, group, seq_len_q, head_dim); dk, dv (heads, seq_len_kv, head_dim).

    heads, int64: batch · num_kv_heads + kv_head of each.
    """

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    heads: torch.Tensor


@dataclass
class Terms:
    """Sums of squares, a key-value head, of what roundings move one gradient by, were each of relative size 1.

    norm: the gradient itself. rounded: its summands (dS k, dS q, or P dO), each rounded before the product. delta: out, whose
    rounding moves delta. cancelled: its summands before delta is subtracted. scores: S rounded; saved: what else native rounds.
    """

    norm: float = 0.0
    rounded: float = 0.0
    delta: float = 0.0
    cancelled: float = 0.0
    scores: float = 0.0
    saved: float = 0.0


@dataclass(frozen=True)
class Sampled:
    """The terms of dq, dk and dv."""

    dq: Terms = field(default_factory=Terms)
    dk: Terms = field(default_factory=Terms)
    dv: Terms = field(default_factory=Terms)


def reference_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, problem: AttentionProblem, seed: int = 0,
    output: AttentionOutput | None = None,
) -> GradientReference:  # fmt: skip
    """The float64 gradients on q's device, of all heads or as many as its budget allows, drawn with the seed.

    output: the forward's out and lse that stand in for the exact ones. Raises Refused where one head alone is too many
    operations.
    """
    total = problem.batch * problem.num_kv_heads
    budget = reference_budget(capability_of(q))
    refuse_gradients(problem, budget)
    count = heads_within(problem, budget)
    drawn = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:count]
    heads = drawn.sort().values
    given = None if output is None else (output.out, output.lse)
    return GradientReference(*reference_gradients(q, k, v, d_out, problem, heads, given), heads)


def check(
    found: Gradients,
    exact: GradientReference,
    sampled: Sampled,
    problem: AttentionProblem,
    precision: Precision,
    provenance: Provenance,
    kernel: str,
    own: GradientReference | None = None,
) -> GradientAccuracy:
    """Compare dq, dk and dv with the exact ones, or with own, those of an FP8 forward's output, which the backward read.

    sampled: sample_terms() of the same heads. A gradient of another shape than its input's does not pass.
    """
    missing: dict[str, str] = {}
    errors = {
        name: _error(name, getattr(found, name), own or exact, sampled, problem, precision, kernel, missing,
                     exact if own is not None else None)
        for name in NAMES
    }  # fmt: skip
    return GradientAccuracy(
        provenance=provenance,
        **errors,
        heads_checked=exact.heads.numel(),
        heads_total=problem.batch * problem.num_kv_heads,
        passed=all(error.passed for error in errors.values()),
        missing=missing,
    )


def _error(
    name: str, found: torch.Tensor, expected: GradientReference, sampled: Sampled, problem: AttentionProblem,
    precision: Precision, kernel: str, missing: dict[str, str], exact: GradientReference | None,
) -> GradientError:  # fmt: skip
    terms: Terms = getattr(sampled, name)
    allowed, because = allowed_error(name, terms, problem, precision, kernel)
    shape = _shape(name, problem)
    relative = largest = end_to_end = None
    if tuple(found.shape) != shape:
        missing[name] = f"{name} has shape {tuple(found.shape)}, the problem asks for {shape}"
    else:
        floor = UNIT_ROUNDOFF[precision.dtype] ** 2 * terms.cancelled * expected.heads.numel()
        relative, largest = _distance(name, found, expected, floor, missing)
        end_to_end = None if exact is None else _distance(name, found, exact, floor, {})[0]
    return GradientError(
        relative_error=relative,
        max_abs_error=largest,
        allowed_relative_error=allowed,
        allowed_because=because,
        non_finite=int((~torch.isfinite(found)).sum()),
        end_to_end_relative_error=end_to_end,
    )


def _shape(name: str, problem: AttentionProblem) -> tuple[int, ...]:
    if name == "dq":
        return problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim
    return problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim


def _distance(
    name: str, found: torch.Tensor, expected: GradientReference, floor: float, missing: dict[str, str]
) -> tuple[float | None, float | None]:
    """(‖found − ref‖ / ‖ref‖, largest absolute error), a head at a time so that float64 copies stay small.

    floor: the least that ‖ref‖² counts as, where nearly all of it cancels.
    """
    reference: torch.Tensor = getattr(expected, name)
    by_head = found.detach().reshape(-1, *reference.shape[1:])
    error_squared = norm_squared = largest = 0.0
    for place, head in enumerate(expected.heads.tolist()):
        difference = by_head[head].double() - reference[place]
        error_squared += float(difference.square().sum())
        norm_squared += float(reference[place].square().sum())
        largest = max(largest, float(difference.abs().max())) if not math.isnan(largest) else largest
    if not math.isfinite(error_squared) or not math.isfinite(largest):
        missing[name] = f"{name} holds NaN or infinity"
        return None, None
    norm_squared = max(norm_squared, floor)
    if norm_squared == 0.0:
        if error_squared == 0.0:
            return 0.0, 0.0
        missing[name] = f"the reference of {name} is 0 everywhere, and {name} is not"
        return None, largest
    return math.sqrt(error_squared / norm_squared), largest


# How far off it may be


def sample_terms(
    exact: GradientReference, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, problem: AttentionProblem
) -> Sampled:
    """Read off some rows (up to 64) of some of the heads that are checked, in float64; a row stands for those beside it."""
    found, group = Sampled(), problem.num_heads // problem.num_kv_heads
    places = torch.linspace(0, exact.heads.numel() - 1, min(exact.heads.numel(), max(1, _MOST_SAMPLED_HEADS // group)))
    places = places.round().long().unique()
    most = max(1, min(_SAMPLED_ROWS, problem.seq_len_q, _SAMPLED_ELEMENTS // problem.seq_len_kv))
    rows, stands_for = (tensor.to(q.device) for tensor in sampled_rows(problem, most))
    for place in places.tolist():
        batch, kv_head = divmod(int(exact.heads[place]), problem.num_kv_heads)
        keys, values = k[batch, kv_head].double(), v[batch, kv_head].double()
        for head in range(kv_head * group, (kv_head + 1) * group):
            queries, d_rows = q[batch, head, rows].double(), d_out[batch, head, rows].double()
            _add(found, queries, keys, values, d_rows, rows, stands_for / places.numel(), problem)
        for name in NAMES:
            getattr(found, name).norm += float(getattr(exact, name)[place].square().sum()) / places.numel()
    return found


def _add(
    found: Sampled, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, rows: torch.Tensor,
    stands_for: torch.Tensor, problem: AttentionProblem,
) -> None:  # fmt: skip
    """What some rows of one head add. Squares of independent errors add; w is P, s the scores, e what multiplies w in dS."""
    s = (q @ k.T) * problem.sm_scale
    if problem.causal:
        last_seen = rows + (problem.seq_len_kv - problem.seq_len_q)
        s.masked_fill_(torch.arange(problem.seq_len_kv, device=q.device)[None, :] > last_seen[:, None], -math.inf)
    w = torch.softmax(s, dim=1).nan_to_num_(0.0)
    s.masked_fill_(w == 0.0, 0.0).square_()
    products, out = d_out @ v.T, w @ v
    delta = (d_out * out).sum(1, keepdim=True)
    w2, e2 = w.square(), (products - delta).square()
    of_row = {"dq": None, "dk": q.square().sum(1) * problem.sm_scale**2, "dv": d_out.square().sum(1)}
    of_key = k.square().sum(1) * problem.sm_scale**2
    seen = ((w @ k) * problem.sm_scale).square().sum(1)

    def add(term: str, name: str, squares: torch.Tensor) -> None:
        """squares (rows, keys) of what stands in the product, each with its key's or its row's length."""
        of_rows = squares @ of_key if of_row[name] is None else squares.sum(1) * of_row[name]
        setattr(getattr(found, name), term, getattr(getattr(found, name), term) + float(stands_for @ of_rows))

    # out rounded: delta is off by Σ dO out ε, the same for all keys of a row. S rounded: e^s is off by s ε, less their mean.
    delta_off = (d_out * out).square().sum(1)
    products_off = (w2 * products.square()).sum(1)
    mean_off = (w2 * s).sum(1, keepdim=True)
    moved = w2 * (e2 * (s + mean_off) + (w2 * e2 * s).sum(1, keepdim=True))
    for name in ("dq", "dk"):
        add("rounded", name, w2 * e2)
        add("cancelled", name, w2 * products.square())
        add("scores", name, moved)
        add("saved", name, w2 * (e2 + products.square()))
    for term, off in (("delta", delta_off), ("saved", 2.0 * products_off)):
        found_dq, found_dk = getattr(found.dq, term), getattr(found.dk, term)
        setattr(found.dq, term, found_dq + float(stands_for @ (off * seen)))
        setattr(found.dk, term, found_dk + float(stands_for @ (off * w2.sum(1) * of_row["dk"])))
    add("rounded", "dv", w2)
    add("cancelled", "dv", w2)
    add("scores", "dv", w2 * (s + mean_off))


def allowed_error(name: str, terms: Terms, problem: AttentionProblem, precision: Precision, kernel: str) -> tuple[float, str]:
    """The relative error of one gradient that rounding alone can explain, and why, with the terms of these very inputs.

    As the forward's (profiling.accuracy.allowed): a rounding to nearest errs by u / √3 root mean square at most, independent
    roundings add as squares. dv = Pᵀ dO: P is rounded, and dv. dq = dS K and dk = dSᵀ Q: dS = P ∘ (dO Vᵀ − delta) is rounded,
    and the gradient; and delta = rowsum(dO ∘ out) reads an out that was rounded. Through autograd native rounds S, which
    stands in an exponent, P, dP and dS, and a gradient twice; a library that repeats K and V for every query head rounds each
    head's part before they are summed. A root mean square over n rows scatters by 1 / (2 √n), and three times that is allowed.
    """
    u, is_native = UNIT_ROUNDOFF[precision.dtype], kernel == "native"
    norm = max(terms.norm, u**2 * terms.cancelled)
    repeats = name != "dq" and problem.num_heads > problem.num_kv_heads
    of_library = kernel not in VERSIONS or not VERSIONS[kernel].has_tiles
    squares = terms.norm * (1 + is_native + (repeats and of_library)) + terms.rounded + terms.delta
    told = [f"{_SUMMANDS[name]} before the product", f"{name} itself"]
    if terms.delta:
        told.append("the output in delta = rowsum(dO ∘ out)")
    if is_native:
        squares += terms.scores + terms.saved
        told.append("S in its exponent, P and dP")
    if norm == 0.0:
        return 0.0, f"{name} is 0 everywhere."
    scatter = 1.0 + 1.5 / math.sqrt(problem.batch * problem.num_heads * min(problem.seq_len_q, problem.seq_len_kv))
    exponent = str(int(-math.log2(u))).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    because = (
        f"Rounded to {precision.dtype} (half a unit 2⁻{exponent}, at most u / √3 root mean square): {', '.join(told)}; with "
        f"these inputs they add, as squares, to {squares / norm:.2g} such roundings of {name}."
    )
    return scatter * u * math.sqrt(squares / norm / 3), because


_SUMMANDS = {"dq": "dS", "dk": "dS", "dv": "P"}
