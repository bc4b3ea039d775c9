"""Proof that a timed launch did the work: inputs' signs are turned before it, and what it returns must follow. Needs torch.

softmax(Q Kᵀ) V is linear in V, and floating point is symmetric about zero: with −V every element of the output is the same
number with the other sign. So an output that is kept from before, in the buffer that the allocator hands out again or in a
cache of the kernel's own, has the wrong sign; so has one that is not yet written when the launch is said to be over, because
the work went to another stream; and NaN is like nothing. Turning V is one pass over it, looking is reading 64 places: both
between the launches, before the L2 cache is flushed.

The gradients are linear in dO, and turn with it. In a training step all of Q, K, V and dO are turned: Q Kᵀ stays, out turns
with V and dV with dO; dS turns with both, and so dQ = dS K and dK = dSᵀ Q turn, as K and Q do: all four results every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

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


@dataclass(frozen=True)
class Watched:
    """A tensor that launches return: how it is found in what they return, what it was when checked, whose signs it follows."""

    of: Callable[[object], torch.Tensor]
    seen: Seen
    follows: tuple[Turned, ...]

    @property
    def sign(self) -> float:
        """The product of the signs that it follows."""
        return math.prod(turned.sign for turned in self.follows)


class Turned:
    """A tensor V whose sign is turned in place, any number of times; sign is +1 or −1. The whole job shares it."""

    def __init__(self, v: torch.Tensor) -> None:
        self._v, self.sign = v, 1.0

    def turn(self) -> None:
        """Queue −V."""
        # .data: a graph of autograd's that reads V is told nothing; V is as it was when that graph is used.
        if self._v.dtype == torch.float8_e4m3fn:
            self._v.data.view(torch.uint8).bitwise_xor_(_SIGN_BIT)
        else:
            self._v.data.neg_()
        self.sign = -self.sign

    def restore(self) -> None:
        """Queue V as it was, bit for bit."""
        if self.sign < 0.0:
            self.turn()


class WitnessedRun(Run):
    """A launch whose every result is looked at. looked: how many launches were; stale: how many had one that did not follow.

    turned: whose signs are turned before each launch; at_rest: who must be as it was meanwhile.
    """

    def __init__(
        self,
        launch: Callable[[], object],
        watched: Sequence[Watched],
        turned: Sequence[Turned],
        at_rest: Sequence[Turned] = (),
    ) -> None:
        super().__init__(launch)
        self._watched, self._turned, self._at_rest = tuple(watched), tuple(turned), tuple(at_rest)
        self._rows: list[torch.Tensor] = []
        self._signs: list[tuple[float, ...]] = []
        self.looked = self.stale = 0

    @property
    def can_tell(self) -> bool:
        """Whether any result has a place that is not zero."""
        return any(len(one.seen.places) > 0 for one in self._watched)

    def begin(self) -> None:
        for turned in self._at_rest:
            turned.restore()

    def turn(self) -> None:
        for turned in self._turned:
            turned.turn()

    def look(self, output: object) -> None:
        found = [one.of(output).detach() for one in self._watched]
        if not self._rows:
            self._rows = [
                tensor.new_empty((STRETCH, len(one.seen.places))) for tensor, one in zip(found, self._watched, strict=True)
            ]
        for rows, tensor, one in zip(self._rows, found, self._watched, strict=True):
            torch.take(tensor, one.seen.places, out=rows[len(self._signs)])
        self._signs.append(tuple(one.sign for one in self._watched))

    def settle(self) -> None:
        if not self._signs:
            return
        follows = torch.ones(len(self._signs), dtype=torch.bool, device=self._watched[0].seen.values.device)
        for rows, one, signs in zip(self._rows, self._watched, zip(*self._signs, strict=True), strict=True):
            follows &= one.seen.follows(rows[: len(signs)], torch.tensor(signs, device=one.seen.values.device))
        self.looked += len(self._signs)
        self.stale += len(self._signs) - int(follows.sum())
        self._signs = []


class WitnessedGraph(WitnessedRun):
    """A graph of launches, replayed with the cache warm: signs are turned before a stretch, results spoilt after each.

    Turning before each would change what is in the cache. Instead the places are overwritten with NaN after each look: a result
    that was not written again is like nothing.
    """

    flushes = False

    def __init__(
        self,
        replay: Callable[[], None],
        output: object,
        launches: int,
        watched: Sequence[Watched],
        turned: Sequence[Turned],
        at_rest: Sequence[Turned] = (),
    ) -> None:
        super().__init__(self._replayed, watched, turned, at_rest)
        self.launches, self._replay, self._output = launches, replay, output
        self._spoilt = [torch.full_like(one.seen.values, float("nan"), dtype=one.of(output).dtype) for one in self._watched]

    def _replayed(self) -> object:
        self._replay()
        return self._output

    def begin(self) -> None:
        super().begin()
        super().turn()
        self._replay()
        self._spoil()

    def turn(self) -> None:
        """Once a stretch is enough."""

    def look(self, output: object) -> None:
        super().look(output)
        self._spoil()

    def _spoil(self) -> None:
        for one, spoilt in zip(self._watched, self._spoilt, strict=True):
            one.of(self._output).data.put_(one.seen.places, spoilt)


@dataclass(frozen=True)
class Witness:
    """What is watched of a launch; whose signs are turned before it; and who must be as it was, because its result was kept."""

    watched: tuple[Watched, ...]
    turned: tuple[Turned, ...]
    at_rest: tuple[Turned, ...] = ()

    @staticmethod
    def of_forward(v: Turned, seen: Seen) -> Witness:
        """out follows V."""
        return Witness((Watched(_out, seen, (v,)),), (v,))

    @staticmethod
    def of_backward(inputs: tuple[Turned, Turned, Turned], d_out: Turned, seen: Mapping[str, Seen]) -> Witness:
        """All three gradients follow dO; out was kept, and so Q, K and V must be those that it is of."""
        return Witness(tuple(Watched(_gradient(name), seen[name], (d_out,)) for name in seen), (d_out,), inputs)

    @staticmethod
    def of_delta(d_out: Turned, seen: Seen, found_in: Callable[[object], torch.Tensor]) -> Witness:
        """delta follows dO; found_in takes it out of what the pre-process returns."""
        return Witness((Watched(found_in, seen, (d_out,)),), (d_out,))

    @staticmethod
    def of_step(
        q: Turned, k: Turned, v: tuple[Turned, Turned], d_out: Turned, seen: Seen, gradients: Mapping[str, Seen]
    ) -> Witness:
        """out and all three gradients, each of which turns with all of Q, K, V and dO. v: the forward's and the backward's."""
        follows = {"dq": (v[1], d_out, k), "dk": (v[1], d_out, q), "dv": (d_out,)}
        watched = [Watched(_gradient(name), one, follows[name]) for name, one in gradients.items()]
        return Witness((Watched(_out, seen, (v[0],)), *watched), tuple(dict.fromkeys((q, k, *v, d_out))))


def _out(returned: object) -> torch.Tensor:
    """Of a Step, or of what a forward returns."""
    return getattr(returned, "output", returned).out


def _gradient(name: str) -> Callable[[object], torch.Tensor]:
    return lambda returned: getattr(returned.gradients, name)
