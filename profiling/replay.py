"""The proof of a trace: the same tiles computed again in NumPy, with a bound on the difference carried from tile to tile.

The bound is a running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, section 3.3), not a tuned
number. What two honest computations of a tile may differ by:
- A score is a sum of head_dim products in float32. Matrix units cut off where others round, so a sum loses at most 2⁻²³ of
  Σ|q||k| at each addition (head_dim + 16, for what follows it). Hopper adds e4m3 products with about 14 bits over blocks
  of 32 (DeepSeek-V3 report, arXiv 2412.19437, section 3.5.2). The replay's own products are exact: float64.
- exp errs by 2⁻²² (PTX ISA, ex2.approx) and by the rounding of its argument, and as much as that argument differs.
- A weight of P rounds to another neighbour only where the two computations lie on either side of a midpoint. So P is
  rounded three times, at the lower end, in the middle and at the upper end of where the kernel's may lie: mostly the
  three are the same, and what they differ by counts in full, times |v|.
- Each addition to l and to the accumulator rounds to float32.

Where m may lag (a version's lag_log2), whether it moves hangs on a comparison that two honest computations may settle
differently. So the replay moves m where the kernel did, and the rule is proved apart: what the kernel held says exactly, in
float32, that m moved in a warp just where a row exceeded it by more than the lag, and then to each row's maximum; and the
scores' maxima that it was held against are the replay's own, within their bound. While m is kept alpha is 1, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels.problem import AttentionProblem, Dtype, Precision
from kernels.registry import VERSIONS
from profiling.record_types import Provenance
from profiling.trace_record import Replay

NO_NUMBER = 1e30
"""The error where one side is NaN or infinite and the other is not."""
_LOSS = 2.0**-23  # of one float32 addition that cuts off
_EXP_LOSS = 2.0**-21  # ex2.approx on the kernel's side, and NumPy's exp on this one
_TINY = 1e-37  # below it exp2 flushes to zero
_LN_2 = np.log(2.0)
ROWS_A_WARP = 16
"""Rows that a warp of a warpgroup holds, and settles together where m may lag."""
_WEIGHT_SHIFT = 256.0  # what P is multiplied by before it becomes e4m3, kernels.flash_v3.P_SHIFT

Format = Literal["bf16", "fp16", "e4m3"]


@dataclass(frozen=True)
class Arithmetic:
    """What of a version's arithmetic shows in its numbers. coarse_sums: 8-bit products on a GPU's matrix units.

    last_first: key tiles are gone through from the last one down. lag_log2: how far a row's scores may exceed m, see above.
    """

    normalised: bool
    weights: Format
    output: Dtype
    coarse_sums: bool
    last_first: bool = False
    lag_log2: float = 0.0

    @staticmethod
    def of(kernel: str, precision: Precision, provenance: Provenance) -> Arithmetic:
        """The arithmetic of one of our versions; a record may name a kernel that there is not here."""
        entry = VERSIONS.get(kernel)
        return Arithmetic(
            normalised=kernel == "v1",
            weights="e4m3" if precision.fp8 else precision.dtype,
            output=precision.dtype,
            coarse_sums=precision.fp8 and provenance == "measured",
            last_first=entry is not None and entry.last_first,
            lag_log2=0.0 if entry is None or precision.fp8 else entry.lag_log2,
        )

    def order(self, visited: int) -> range:
        """The key blocks 0 to visited − 1, in the order visited."""
        return range(visited - 1, -1, -1) if self.last_first else range(visited)

    @property
    def shift(self) -> float:
        """The power of two that keeps small weights out of e4m3's subnormals."""
        return _WEIGHT_SHIFT if self.weights == "e4m3" else 1.0

    def sum_loss(self, terms: int) -> float:
        """What a sum of products may lose, as a share of the sum of their magnitudes."""
        coarse = (terms / 32 + 1) * 2.0**-13 if self.coarse_sums else 0.0
        return (terms + 16) * _LOSS + coarse


@dataclass(frozen=True)
class Block:
    """A query block's operands as the kernel read them, float64: q (rows, head_dim), and keys (first, end) -> k and v.

    FP8's codes come with their scales; first_row is the block's first row in its head. rows may be fewer than BLOCK_M.
    """

    problem: AttentionProblem
    first_row: int
    q: np.ndarray
    keys: Callable[[int, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Kept:
    """A quantity of a tile, and how far the kernel's may be off it, element by element."""

    value: np.ndarray
    bound: np.ndarray


@dataclass(frozen=True)
class Step:
    """One tile, replayed. surely and perhaps: how many rows' maxima rose at least and at most."""

    scores: Kept
    m: Kept
    l: Kept  # noqa: E741
    alpha: Kept
    acc: Kept
    row_max: Kept
    surely: int
    perhaps: int


def replayed(
    block: Block, arithmetic: Arithmetic, block_n: int, visited: int, moved: np.ndarray | None = None
) -> Iterator[tuple[int, Step]]:
    """(key block, step) of a block's tiles in the order visited. moved (visited, rows): where m may lag, whether it moved."""
    rows, head_dim = block.q.shape
    state = _State.empty(rows, head_dim)
    for place, key_block in enumerate(arithmetic.order(visited)):
        first_key = key_block * block_n
        k, v = block.keys(first_key, min(first_key + block_n, block.problem.seq_len_kv))
        scores = _scores(block, arithmetic, first_key, k, block_n)
        state, step = _merge(state, scores, v, arithmetic, None if moved is None else moved[place])
        yield key_block, step


@dataclass(frozen=True)
class _State:
    """m, l and O not normalised, float32, with the bounds of each."""

    m: np.ndarray
    m_bound: np.ndarray
    l: np.ndarray  # noqa: E741
    l_bound: np.ndarray
    acc: np.ndarray
    acc_bound: np.ndarray

    @staticmethod
    def empty(rows: int, head_dim: int) -> _State:
        zeros, wide = np.zeros(rows, np.float32), np.zeros((rows, head_dim), np.float32)
        return _State(
            np.full(rows, -np.inf, np.float32), zeros.astype(float), zeros, zeros.astype(float), wide, wide.astype(float)
        )


def _scores(block: Block, arithmetic: Arithmetic, first_key: int, k: np.ndarray, block_n: int) -> Kept:
    """S of one tile in natural units, -inf where hidden and past the last key."""
    problem, rows = block.problem, block.q.shape[0]
    found = np.full((rows, block_n), -np.inf, np.float32)
    bound = np.zeros((rows, block_n))
    keys = first_key + np.arange(k.shape[0])
    found[:, : keys.size] = block.q @ k.T * problem.sm_scale
    magnitude = np.abs(block.q) @ np.abs(k).T * problem.sm_scale
    bound[:, : keys.size] = arithmetic.sum_loss(problem.head_dim) * magnitude + _TINY
    if problem.causal:
        last_seen = block.first_row + np.arange(rows) + problem.seq_len_kv - problem.seq_len_q
        hidden = np.arange(first_key, first_key + block_n)[None, :] > last_seen[:, None]
        found[hidden], bound[hidden] = -np.inf, 0.0
    return Kept(found, bound)


def _merge(state: _State, scores: Kept, v: np.ndarray, arithmetic: Arithmetic, moved: np.ndarray | None) -> tuple[_State, Step]:
    """One tile of the online softmax. v1's O is kept as O · l here: the same numbers, normalised where they are shown.

    moved (rows,): where m takes the tile's maximum, if that is larger; None: everywhere.
    """
    s = scores.value
    m_tile, tile_bound = s.max(1), scores.bound.max(1)
    m, m_bound = np.maximum(state.m, m_tile), np.maximum(state.m_bound, tile_bound)
    if moved is not None:
        m, m_bound = np.where(moved, m, state.m), np.where(moved, m_bound, state.m_bound)
    alpha = _exp(state.m, m, state.m_bound + m_bound)
    if moved is not None:
        kept = ~moved & (state.m > -np.inf)
        alpha = Kept(np.where(kept, np.float32(1), alpha.value), np.where(kept, 0.0, alpha.bound))
    # v1 takes a tile's weights relative to the tile's own maximum, and shrinks their product with V by beta.
    base, base_bound = (m_tile, tile_bound) if arithmetic.normalised else (m, m_bound)
    beta = _exp(base, m, base_bound + m_bound)
    p = _exp(s, base[:, None], scores.bound + base_bound[:, None])
    p_loss = _loss(p)
    weights, weights_bound = _rounded_weights(p, p_loss, arithmetic)
    v = np.pad(v, ((0, s.shape[1] - v.shape[0]), (0, 0)))
    product, magnitude = (weights @ v).astype(np.float32), weights @ np.abs(v)
    product_bound = weights_bound @ np.abs(v) + arithmetic.sum_loss(s.shape[1]) * magnitude

    def grown(before: np.ndarray, before_bound: np.ndarray, added: np.ndarray, added_bound: np.ndarray) -> Kept:
        wide = (slice(None),) + (None,) * (before.ndim - 1)
        a, a_bound, b, b_bound = (x[wide] for x in (alpha.value, alpha.bound, beta.value, beta.bound))
        value = (a * before + b * added).astype(np.float32)
        bound = (a + a_bound) * before_bound + a_bound * np.abs(before) + (b + b_bound) * added_bound + b_bound * np.abs(added)
        return Kept(value, bound + 8 * _LOSS * (np.abs(a * before) + np.abs(b * added)) + _TINY)

    total = p.value.sum(1)
    l_new = grown(state.l, state.l_bound, total, p.bound.sum(1) + (s.shape[1] + 4) * _LOSS * total)
    acc = grown(state.acc, state.acc_bound, product, product_bound)
    gap, doubt = _gap(m_tile, state.m), tile_bound + state.m_bound
    may_rise = np.ones(gap.shape, bool) if moved is None else moved
    step = Step(
        scores=scores, m=Kept(m, m_bound), l=l_new, alpha=alpha, acc=_normalised(acc, l_new) if arithmetic.normalised else acc,
        row_max=Kept(m_tile, tile_bound), surely=int(((gap > doubt) & may_rise).sum()),
        perhaps=int(((gap > -doubt) & may_rise).sum()),
    )  # fmt: skip
    return _State(m, m_bound, l_new.value, l_new.bound, acc.value, acc.bound), step


def _exp(x: np.ndarray, base: np.ndarray, difference: np.ndarray) -> Kept:
    """exp(x - base), 0 for x = -inf, where the kernel's argument may be off by difference and by its roundings."""
    hidden = x == -np.inf
    x, base = np.where(hidden, 0.0, x), np.where(base == -np.inf, 0.0, base)
    value = np.where(hidden, 0.0, np.exp(np.where(hidden, 0.0, x - base).astype(np.float32))).astype(np.float32)
    loss = np.expm1(difference + (np.abs(x) + np.abs(base)) * 2.0**-22 + _EXP_LOSS)
    return Kept(value, np.where(hidden, 0.0, value * loss + _TINY))


def _loss(p: Kept) -> np.ndarray:
    """The bound as a share of the value."""
    return np.divide(p.bound, p.value, out=np.zeros_like(p.bound), where=p.value > 0)


def _rounded_weights(p: Kept, loss: np.ndarray, arithmetic: Arithmetic) -> tuple[np.ndarray, np.ndarray]:
    """P as it enters the product, and how far the kernel's may be off: 0 unless a midpoint lies between."""
    shifted = p.value.astype(np.float64) * arithmetic.shift
    middle = rounded_to(arithmetic.weights, shifted)
    below, above = (rounded_to(arithmetic.weights, np.maximum(shifted * (1.0 + way * loss), 0.0)) for way in (-1.0, 1.0))
    return middle / arithmetic.shift, np.maximum(above - middle, middle - below) / arithmetic.shift


def _normalised(acc: Kept, l_new: Kept) -> Kept:
    """O = acc / l; 0 for a row that has seen nothing."""
    l_safe = np.where(l_new.value == 0.0, 1.0, l_new.value)[:, None]
    least = np.maximum(l_safe - l_new.bound[:, None], l_safe / 2)
    value = acc.value / l_safe
    return Kept(value, (acc.bound + np.abs(value) * l_new.bound[:, None]) / least + 8 * _LOSS * np.abs(value) + _TINY)


def _gap(m_tile: np.ndarray, m_before: np.ndarray) -> np.ndarray:
    """By how much a tile's maximum is above the running one; -inf where the tile shows nothing."""
    seen = m_tile > -np.inf
    before = np.where(seen, m_before, 0.0)
    return np.where(seen, np.where(seen, m_tile, 0.0) - before, -np.inf)


def rounded_to(format_: Format, x: np.ndarray) -> np.ndarray:
    """x, float64, to the nearest value of a format, ties to even; e4m3 saturates at 448. float64."""
    if format_ == "fp16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float64)
    significand, smallest = (8, -133) if format_ == "bf16" else (4, -9)
    _, exponent = np.frexp(x)  # |x| = f · 2^exponent with f from 1/2 to 1
    step = np.ldexp(1.0, np.maximum(exponent - significand, smallest))
    nearest = np.round(x / step) * step
    return np.clip(nearest, -448.0, 448.0) if format_ == "e4m3" else nearest


# The comparison


@dataclass(frozen=True)
class Stored:
    """What the trace holds, float32: scores (T, rows, BLOCK_N), m, l, alpha (T, rows), acc (T, rows, head_dim).

    key_blocks (T,); rises (key blocks,): how many rows' maxima rose in this block, -1 where it never went, None where the
    map is not kept. output (rows, head_dim): the block's rows of the kernel's output, of a launch without the trace.
    maxima (visited, 3, BLOCK_M), where m may lag: kernels.trace.Frames.maxima.
    """

    key_blocks: np.ndarray
    scores: np.ndarray
    m: np.ndarray
    l: np.ndarray  # noqa: E741
    alpha: np.ndarray
    acc: np.ndarray
    rises: np.ndarray | None
    output: np.ndarray
    maxima: np.ndarray | None = None


class _Tally:
    """The largest difference, the largest bound and the largest magnitude of one quantity."""

    def __init__(self) -> None:
        self.error = self.allowed = self.magnitude = 0.0
        self.within = True

    def add(self, found: np.ndarray, expected: Kept) -> None:
        # A row that has seen nothing has m = -inf on both sides, a hidden score too.
        same = found == expected.value
        with np.errstate(invalid="ignore"):
            difference = np.where(same, 0.0, np.abs(found.astype(np.float64) - expected.value))
        difference = np.where(np.isfinite(difference), difference, NO_NUMBER)
        finite = np.abs(expected.value[np.isfinite(expected.value)])
        # The trace's own unit: one multiplication by a rounded constant, and a sum read back as float32.
        bound = expected.bound + 2.0**-22 * np.where(np.isfinite(expected.value), np.abs(expected.value), 0.0)
        self.error = max(self.error, float(difference.max(initial=0.0)))
        self.allowed = max(self.allowed, float(bound.max(initial=0.0)))
        self.magnitude = max(self.magnitude, float(finite.max(initial=0.0)))
        self.within = self.within and bool((difference <= bound).all())

    @property
    def share(self) -> float:
        """error over magnitude, at most NO_NUMBER."""
        return min(self.error / self._unit, NO_NUMBER)

    @property
    def allowed_share(self) -> float:
        """allowed over magnitude."""
        return self.allowed / self._unit

    @property
    def _unit(self) -> float:
        return self.magnitude or 1.0


def prove(stored: Stored, block: Block, arithmetic: Arithmetic, visited: int) -> Replay:
    """Replay a block's visited tiles and compare the stored ones, and the last with the output.

    passed asks more than the record's largest figures: every element within its own bound, the maxima that rose as many as
    may have, no tile visited but those; and where m may lag, that it did so by the rule at every visited tile.
    """
    tallies = {name: _Tally() for name in ("scores", "m", "l", "alpha", "acc")}
    slots = {int(key_block): slot for slot, key_block in enumerate(stored.key_blocks)}
    rises_right = stored.rises is None or bool((stored.rises[visited:] == -1).all())
    settled = _Settled.of(stored, arithmetic, visited, block.q.shape[0])
    last: Step | None = None
    for place, (key_block, step) in enumerate(
        replayed(block, arithmetic, stored.scores.shape[2], visited, None if settled is None else settled.moved)
    ):
        if stored.rises is not None:
            rises_right = rises_right and step.surely <= int(stored.rises[key_block]) <= step.perhaps
        if (slot := slots.get(key_block)) is not None:
            for name, tally in tallies.items():
                tally.add(getattr(stored, name)[slot], getattr(step, name))
        if settled is not None:
            settled.compare(place, step)
        last = step
    output = _output_tally(stored, last, arithmetic)
    states = [tally for name, tally in tallies.items() if name != "scores"]
    by_the_rule = settled is None or settled.is_right
    return Replay(
        scores_error=tallies["scores"].share, allowed_scores_error=tallies["scores"].allowed_share,
        m_error=tallies["m"].share, l_error=tallies["l"].share, alpha_error=tallies["alpha"].share,
        acc_error=tallies["acc"].share, allowed_error=max(tally.allowed_share for tally in states),
        output_error=output.share, allowed_output_error=output.allowed_share, allowed_because=_because(arithmetic),
        passed=rises_right and by_the_rule and output.within and all(tally.within for tally in tallies.values()),
    )  # fmt: skip


class _Settled:
    """What a kernel whose m may lag held at every visited tile, and whether that is the rule and the replay's own.

    moved (visited, rows): whether m moved.
    """

    def __init__(self, maxima: np.ndarray, lag_log2: float, visited: int, rows: int) -> None:
        self._m, self._row_max, self._multiplied = (maxima[:, part] for part in range(3))
        self._tally = _Tally()
        if len(maxima) == visited:
            exceeded, self._follows_rule = _by_the_rule(self._m, self._row_max, self._multiplied, lag_log2)
        else:
            exceeded, self._follows_rule = np.zeros((visited, maxima.shape[2]), bool), False
        self.moved = exceeded[:, :rows]
        self._rows = rows

    @staticmethod
    def of(stored: Stored, arithmetic: Arithmetic, visited: int, rows: int) -> _Settled | None:
        """None where m does not lag. Raises ValueError where it may and nothing says what it did."""
        if not arithmetic.lag_log2:
            return None
        if stored.maxima is None:
            raise ValueError("a trace of a kernel whose m may lag is not possible without what it held at every tile.")
        return _Settled(stored.maxima, arithmetic.lag_log2, visited, rows)

    @property
    def is_right(self) -> bool:
        """Whether m moved by the rule, on the right maxima."""
        return self._follows_rule and self._tally.within

    def compare(self, place: int, step: Step) -> None:
        """Hold a tile's largest scores, and m after it, against the replay's."""
        if place < len(self._m):
            for found, expected in ((self._row_max, step.row_max), (self._m, step.m)):
                self._tally.add((found[place, : self._rows] * _LN_2).astype(np.float32), expected)


def _by_the_rule(m: np.ndarray, row_max: np.ndarray, multiplied: np.ndarray, lag_log2: float) -> tuple[np.ndarray, bool]:
    """((visited, BLOCK_M): whether a row of its warp exceeds m by more than the lag; whether m did just what follows from it).

    All in log2, float32, so that it is the kernel's own comparison. Where m moved, O was multiplied: it may be elsewhere, too,
    but for the first tile's, which is zero.
    """
    before = np.concatenate([np.full_like(m[:1], -np.inf), m[:-1]])
    with np.errstate(invalid="ignore"):
        ahead = (row_max - before).reshape(len(m), -1, ROWS_A_WARP) > np.float32(lag_log2)
    exceeded = np.repeat(ahead.any(axis=2), ROWS_A_WARP, axis=1)
    expected = np.where(exceeded, np.maximum(before, row_max), before)
    is_scaled = multiplied[1:][exceeded[1:]] == 1
    return exceeded, bool((m == expected).all() and is_scaled.all() and np.isin(multiplied, (0, 1)).all())


def _output_tally(stored: Stored, last: Step | None, arithmetic: Arithmetic) -> _Tally:
    """The last frame's O beside the kernel's output, which is of another launch: both may be off by the replay's bound."""
    tally = _Tally()
    if last is None or not stored.key_blocks.size:
        tally.add(stored.output, Kept(np.zeros_like(stored.output), np.zeros(stored.output.shape)))
        return tally
    l_safe = np.where(stored.l[-1] == 0.0, 1.0, stored.l[-1])[:, None]
    frame = stored.acc[-1] if arithmetic.normalised else stored.acc[-1] / l_safe
    replay = last.acc if arithmetic.normalised else _normalised(last.acc, last.l)
    unit, subnormal = (2.0**-8, _TINY) if arithmetic.output == "bf16" else (2.0**-11, 2.0**-25)
    tally.add(stored.output, Kept(frame, unit * np.abs(frame) + subnormal + 2.0 * replay.bound))
    return tally


def _because(arithmetic: Arithmetic) -> str:
    sums = "e4m3 products are summed with about 14 bits" if arithmetic.coarse_sums else "products are summed in float32"
    rule = (
        f"; m lags by up to 2^{arithmetic.lag_log2:g}, which is proved on what the kernel held" if arithmetic.lag_log2 else ""
    )
    return (
        f"Carried from tile to tile: {sums}, exp errs by 2⁻²² and by its argument, and a weight counts as off only where "
        f"both sides of a midpoint of {arithmetic.weights} are possible; the output is rounded to {arithmetic.output}{rule}."
    )
