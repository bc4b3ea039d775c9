"""What other scales would do to FP8 attention: e4m3 rounding simulated in NumPy beside float64, on drawn data. Modelled.

Q and K are rounded as a Scheme says; V with a scale a channel and P times 2^8 as kernels.quantize and kernels.flash_v3 do it,
P beside its row's last maximum. Sums are exact: what a kernel's accumulation adds is not in here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Scale = Literal["tensor", "block", "token", "127"]
Data = Literal["normal", "outliers", "k bias"]
SCALES: tuple[Scale, ...] = get_args(Scale)
DATA: tuple[Data, ...] = get_args(Data)

SCALE_BLOCK = 64
QUERIES = 128
"""As many rows of Q, evenly spread, are attended with; scales are of all."""
FEWEST_HEADS, MOST_HEADS = 3, 6
_E4M3_MAX, _WEIGHT_SHIFT = 448.0, 256.0
_BIAS_SIGMA = 3.0
_AT_ONCE = 1 << 16  # numbers that stay in a core's own cache


@dataclass(frozen=True)
class Scheme:
    """How Q and K are scaled to e4m3.

    scale: the largest magnitude of the tensor, of a block of 64 tokens or of a token becomes 448; "127": that of the tensor
    becomes 127, as x · (127 / max|x| + 1e-6), which int8 would want. hadamard: Q and K are rotated alike first, by a Hadamard
    matrix with random signs, which spreads an outlier over the channels (QuaRot, arXiv 2404.00456). smooth_k: K's mean over
    the tokens is taken off first (SageAttention, arXiv 2410.02367).
    """

    scale: Scale
    hadamard: bool = False
    smooth_k: bool = False


SCHEMES: tuple[Scheme, ...] = tuple(
    Scheme(scale, hadamard, smooth_k) for hadamard in (False, True) for smooth_k in (False, True) for scale in SCALES
)


@dataclass(frozen=True)
class Study:
    """rmse: √mean((O - exact O)²) by scheme, over all heads; output_rms: √mean(exact O²).

    scatter: the largest standard deviation of a scheme's mean over the heads, as a share of it.
    """

    data: Data
    seq_len: int
    head_dim: int
    heads: int
    rmse: dict[Scheme, float]
    output_rms: float
    scatter: float


def study(data: Data, seq_len: int, head_dim: int, seed: int = 0) -> Study:
    """Every scheme on some heads of data, not causal. Raises ValueError unless head_dim is a power of two."""
    heads = min(MOST_HEADS, max(FEWEST_HEADS, 4096 // seq_len))
    rng = np.random.default_rng(seed)
    found, exact = zip(*(_head(data, seq_len, head_dim, rng) for _ in range(heads)), strict=True)
    squares = np.array([[errors[scheme] ** 2 for scheme in SCHEMES] for errors in found])
    rmse = np.sqrt(squares.mean(0))
    scatter = np.sqrt(squares).std(0, ddof=1) / np.sqrt(heads)
    return Study(
        data, seq_len, head_dim, heads, dict(zip(SCHEMES, rmse.tolist(), strict=True)), _rms(np.array(exact)),
        float((scatter / rmse).max()),
    )  # fmt: skip


def _head(data: Data, seq_len: int, head_dim: int, rng: np.random.Generator) -> tuple[dict[Scheme, float], float]:
    """The RMSE of each scheme on one head, and the RMS of its exact O."""
    (q, k, v), rotation = drawn(data, seq_len, head_dim, rng), hadamard_matrix(head_dim, rng)
    rows = np.linspace(0, seq_len - 1, min(QUERIES, seq_len)).round().astype(int)
    exact = _attention(q[rows].astype(np.float64), k.astype(np.float64), v.astype(np.float64), rounds_p=False)
    v_rounded = rounded_by(v, np.abs(v).max(0, keepdims=True) / _E4M3_MAX)
    errors = {}
    for hadamard in (False, True):
        q, k = (_product(q, rotation), _product(k, rotation)) if hadamard else (q, k)
        q_rounded = {scale: quantised(q, scale)[rows] for scale in SCALES}
        for smooth_k in (False, True):
            smoothed = k - k.mean(0) if smooth_k else k
            for scale in SCALES:
                found = _attention(q_rounded[scale], quantised(smoothed, scale), v_rounded, rounds_p=True)
                errors[Scheme(scale, hadamard, smooth_k)] = _rms(found - exact)
    return errors, _rms(exact)


def drawn(data: Data, seq_len: int, head_dim: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k, v (seq_len, head_dim), float32: N(0, 1), with outliers as the FlashAttention-3 paper has them (section 4.3):
    N(0, 1) + N(0, 100) · Bernoulli(0.001); or with a bias N(0, 3²) on each channel of K."""
    q, k, v = rng.standard_normal((3, seq_len, head_dim))
    if data == "outliers":
        large = 10.0 * rng.standard_normal((3, seq_len, head_dim)) * (rng.random((3, seq_len, head_dim)) < 0.001)
        q, k, v = q + large[0], k + large[1], v + large[2]
    if data == "k bias":
        k = k + _BIAS_SIGMA * rng.standard_normal(head_dim)
    return q.astype(np.float32), k.astype(np.float32), v.astype(np.float32)


# Rounding


def e4m3(x: np.ndarray) -> np.ndarray:
    """x, float32, to the nearest value of e4m3, ties to even, beyond 448 to 448. float32; NaN stays."""
    flat, found = np.ravel(x), np.empty(x.size, np.float32)
    for start in range(0, x.size, _AT_ONCE):
        found[start : start + _AT_ONCE] = _nearest(flat[start : start + _AT_ONCE])
    return found.reshape(x.shape)


def _nearest(x: np.ndarray) -> np.ndarray:
    x = np.clip(x, -np.float32(_E4M3_MAX), np.float32(_E4M3_MAX))
    pusher = (x.view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)
    # Added to x, 1.5 · 2^20 of its binade leaves three bits behind the point, and rounds as float32 addition does.
    np.maximum(pusher, np.float32(2.0**-6), out=pusher)
    pusher *= np.float32(1.5 * 2.0**20)
    found = x + pusher
    found -= pusher
    return np.copysign(found, x, out=found)


def rounded_by(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """x as e4m3 of x / scale stands for it; a scale of 0 counts as 1."""
    scale = np.where(scale > 0, scale, 1.0).astype(np.float32)
    return e4m3(x / scale) * scale


def quantised(x: np.ndarray, scale: Scale) -> np.ndarray:
    """x (tokens, head_dim), float32, as e4m3 with scales of one kind stands for it."""
    largest = np.abs(x).max(1, keepdims=True)
    if scale == "token":
        return rounded_by(x, largest / _E4M3_MAX)
    if scale == "block":
        starts = np.arange(0, len(x), SCALE_BLOCK)
        of_block = np.maximum.reduceat(largest, starts)
        return rounded_by(x, np.repeat(of_block, SCALE_BLOCK, axis=0)[: len(x)] / _E4M3_MAX)
    if scale == "127":
        return rounded_by(x, 1.0 / (127.0 / largest.max(keepdims=True) + 1e-6))
    return rounded_by(x, largest.max(keepdims=True) / _E4M3_MAX)


def hadamard_matrix(head_dim: int, rng: np.random.Generator) -> np.ndarray:
    """(head_dim, head_dim), orthonormal, float32: Sylvester's matrix with random signs. Raises ValueError for other sizes."""
    if head_dim < 1 or head_dim & (head_dim - 1):
        raise ValueError(f"head_dim = {head_dim} is not possible: Hadamard's matrix needs a power of two.")
    found = np.ones((1, 1))
    while len(found) < head_dim:
        found = np.block([[found, found], [found, -found]])
    return (rng.choice([-1.0, 1.0], head_dim)[:, None] * found / math.sqrt(head_dim)).astype(np.float32)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, rounds_p: bool) -> np.ndarray:
    """O of q's rows, in the type of the inputs; l sums P before it is rounded, as a kernel does."""
    a_part = max(32, _AT_ONCE // len(k))
    found = [_attended(q[first : first + a_part], k, v, rounds_p) for first in range(0, len(q), a_part)]
    return np.concatenate(found)


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, rounds_p: bool) -> np.ndarray:
    scores = _product(q, k.T)
    scores *= scores.dtype.type(q.shape[1] ** -0.5)
    scores -= scores.max(1, keepdims=True)
    p = np.exp(scores, out=scores)
    l = p.sum(1, keepdims=True)  # noqa: E741  the field's name
    if rounds_p:
        p = e4m3(p * np.float32(_WEIGHT_SHIFT)) / np.float32(_WEIGHT_SHIFT)
    return _product(p, v) / l


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, piece by piece: pieces of 32 × 128 × 64 are small enough for OpenBLAS to stay on one thread.

    Its threads wait for each other in busy loops, which took some fifteen times as long on a busy machine.
    """
    found = np.zeros((a.shape[0], b.shape[1]), np.result_type(a, b))
    for row in range(0, a.shape[0], 32):
        for column in range(0, b.shape[1], 64):
            for inner in range(0, a.shape[1], 128):
                part = a[row : row + 32, inner : inner + 128] @ b[inner : inner + 128, column : column + 64]
                found[row : row + 32, column : column + 64] += part
    return found


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt((values.astype(np.float64) ** 2).mean()))
