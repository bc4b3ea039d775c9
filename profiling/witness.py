"""Proof that a timed launch did the work: V's sign is turned before it, and its output must follow. Needs torch.

softmax(Q Kᵀ) V is linear in V, and floating point is symmetric about zero: with −V every element of the output is the same
number with the other sign. So an output that is kept from before, in the buffer that the allocator hands out again or in a
cache of the kernel's own, has the wrong sign; so has one that is not yet written when the launch is said to be over, because
the work went to another stream; and NaN is like nothing. Turning V is one pass over it, looking is reading 64 places: both
between the launches, before the L2 cache is flushed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.kernel import AttentionOutput
from profiling.measure import Run
from profiling.stream_timer import STRETCH

PLACES = 64
_CANDIDATES = 64
_SIGN_BIT = 128


@dataclass(frozen=True)
class Seen:
    """What the output that was checked holds in a few places (int64, flattened out): values, float32, none of them zero.

    There are fewer than PLACES where the output is zero, and none where all of it is.
    """

    places: torch.Tensor
    values: torch.Tensor

    @staticmethod
    def of(out: torch.Tensor) -> Seen:
        """One place in each of PLACES equal parts of the output: that of the largest of some magnitudes drawn there."""
        generator = torch.Generator().manual_seed(0)
        numbers = torch.rand((PLACES, _CANDIDATES), generator=generator, dtype=torch.float64)
        spots = ((numbers + torch.arange(PLACES)[:, None]) * (out.numel() / PLACES)).long().clamp_(max=out.numel() - 1)
        spots = spots.to(out.device)
        found = torch.take(out, spots).float()
        best = found.abs().argmax(1, keepdim=True)
        places, values = spots.gather(1, best).flatten(), found.gather(1, best).flatten()
        return Seen(places[values != 0.0], values[values != 0.0])

    def follows(self, rows: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
        """Of each row (n, places) whether it is these values with its sign (n,), to half of each: turned, it is off by two."""
        expected = signs[:, None] * self.values
        return ((rows.float() - expected).abs() <= 0.5 * expected.abs()).all(1)


class Turned:
    """A tensor V whose sign is turned in place, any number of times; sign is +1 or −1. The whole job shares it."""

    def __init__(self, v: torch.Tensor) -> None:
        self._v, self.sign = v, 1.0

    def turn(self) -> None:
        """Queue −V."""
        if self._v.dtype == torch.float8_e4m3fn:
            self._v.view(torch.uint8).bitwise_xor_(_SIGN_BIT)
        else:
            self._v.neg_()
        self.sign = -self.sign

    def restore(self) -> None:
        """Queue V as it was, bit for bit."""
        if self.sign < 0.0:
            self.turn()


class WitnessedRun(Run):
    """A launch whose every output is looked at. looked: how many were; stale: how many did not follow V."""

    def __init__(self, launch: Callable[[], AttentionOutput], turned: Turned, seen: Seen) -> None:
        super().__init__(launch)
        self._turned, self._seen = turned, seen
        self._rows: torch.Tensor | None = None
        self._signs: list[float] = []
        self.looked = self.stale = 0

    @property
    def can_tell(self) -> bool:
        """Whether the output has a place that is not zero."""
        return len(self._seen.places) > 0

    def turn(self) -> None:
        self._turned.turn()

    def look(self, output: AttentionOutput) -> None:
        if self._rows is None:
            self._rows = output.out.new_empty((STRETCH, len(self._seen.places)))
        torch.take(output.out, self._seen.places, out=self._rows[len(self._signs)])
        self._signs.append(self._turned.sign)

    def settle(self) -> None:
        signs = torch.tensor(self._signs, device=self._seen.values.device)
        follows = self._seen.follows(self._rows[: len(signs)], signs)
        self.looked += len(signs)
        self.stale += len(signs) - int(follows.sum())
        self._signs = []


class WitnessedGraph(WitnessedRun):
    """A graph of launches, replayed with the cache warm: V is turned before a stretch of replays, whose output is spoiled.

    Turning V before each would change what is in the cache. Instead the places are overwritten with NaN after each look: an
    output that was not written again is like nothing.
    """

    flushes = False

    def __init__(self, replay: Callable[[], None], output: AttentionOutput, launches: int, turned: Turned, seen: Seen) -> None:
        super().__init__(self._replayed, turned, seen)
        self.launches, self._replay, self._output = launches, replay, output
        self._spoilt = torch.full_like(seen.values, float("nan"), dtype=output.out.dtype)

    def _replayed(self) -> AttentionOutput:
        self._replay()
        return self._output

    def begin(self) -> None:
        self._turned.turn()
        self._replay()
        self._spoil()

    def turn(self) -> None:
        """Once a stretch is enough."""

    def look(self, output: AttentionOutput) -> None:
        super().look(output)
        self._spoil()

    def _spoil(self) -> None:
        self._output.out.put_(self._seen.places, self._spoilt)
