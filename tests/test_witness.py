"""Each timed launch's output is its own: turned inputs turn it, and whatever was kept from before is found out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels import native
from kernels.kernel import AttentionOutput, as_given
from kernels.peers import HeadScaled
from kernels.problem import AttentionProblem, Precision
from profiling.witness import PLACES, Seen, Turned, Witness, WitnessedGraph, WitnessedRun

PROBLEM = AttentionProblem(num_heads=4, num_kv_heads=2, seq_len_q=33, seq_len_kv=48, head_dim=16, causal=True)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((1, 4, 33, 16), (1, 2, 48, 16), (1, 2, 48, 16))
    return tuple(torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes)


def of_forward(v: Turned, seen: Seen) -> tuple:
    witness = Witness.of_forward(v, seen)
    return witness.watched, witness.turned


class Witnessed:
    """An attention on the CPU, and `count` launches of what `cheating` makes of it."""

    def __init__(self, cheating: Callable[[Callable[[], AttentionOutput]], Callable[[], AttentionOutput]]) -> None:
        q, k, v = inputs()
        operands = as_given(q, k, v, Precision(), None)
        self.v, self.before = v, v.clone()
        honest = lambda: native.forward(operands, PROBLEM, None, None, with_lse=False)  # noqa: E731
        self.turned = Turned(v)
        self.run = WitnessedRun(cheating(honest), *of_forward(self.turned, Seen.of(honest().out)))

    def launch(self, count: int) -> int:
        for _ in range(count):
            self.run.turn()
            self.run.look(self.run())
        self.run.settle()
        return self.run.stale


def honest(forward: Callable[[], AttentionOutput]) -> Callable[[], AttentionOutput]:
    return forward


def cached(forward: Callable[[], AttentionOutput]) -> Callable[[], AttentionOutput]:
    kept = forward()
    return lambda: kept


def copied_from_a_cache(forward: Callable[[], AttentionOutput]) -> Callable[[], AttentionOutput]:
    kept = forward()
    return lambda: AttentionOutput(kept.out.clone(), None)


def skipped(forward: Callable[[], AttentionOutput]) -> Callable[[], AttentionOutput]:
    """Nothing is launched: the allocator hands out the buffer of the launch before, whose output is still in it."""
    buffer, launches = forward().out, iter(range(1000))

    def launch() -> AttentionOutput:
        if next(launches) % 2 == 0:
            buffer.copy_(forward().out)
        return AttentionOutput(buffer, None)

    return launch


def nan(forward: Callable[[], AttentionOutput]) -> Callable[[], AttentionOutput]:
    return lambda: AttentionOutput(torch.full_like(forward().out, torch.nan), None)


def late(forward: Callable[[], AttentionOutput]) -> Callable[[], AttentionOutput]:
    """Another stream's work: the output is written after it was looked at, so that what is seen is the launch before's."""
    waiting = [forward().out]

    def launch() -> AttentionOutput:
        waiting.append(forward().out)
        return AttentionOutput(waiting.pop(0), None)

    return launch


def one_head_too_few(forward: Callable[[], AttentionOutput]) -> Callable[[], AttentionOutput]:
    kept = forward().out.clone()

    def launch() -> AttentionOutput:
        out = forward().out.clone()
        out[:, -1] = kept[:, -1]
        return AttentionOutput(out, None)

    return launch


def test_an_honest_kernel_is_believed_and_v_is_left_as_it_was() -> None:
    witnessed = Witnessed(honest)
    assert witnessed.launch(7) == 0
    assert not torch.equal(witnessed.v, witnessed.before)
    witnessed.turned.restore()
    witnessed.turned.restore()
    assert torch.equal(witnessed.v, witnessed.before)
    assert witnessed.launch(50) == 0
    assert witnessed.run.looked == 57


@pytest.mark.parametrize(
    ("cheating", "stale"), [(cached, 5), (copied_from_a_cache, 5), (skipped, 5), (nan, 10), (late, 10), (one_head_too_few, 5)]
)
def test_an_output_that_is_not_fresh_is_found(cheating: Callable, stale: int) -> None:
    assert Witnessed(cheating).launch(10) == stale


def test_places_are_spread_over_the_whole_output_and_hold_something() -> None:
    out = torch.randn((2, 3, 40, 16), generator=torch.Generator().manual_seed(0))
    seen = Seen.of(out)
    assert len(seen.places) == PLACES
    assert torch.equal(out.flatten()[seen.places], seen.values)
    assert torch.equal(seen.places * PLACES // out.numel(), torch.arange(PLACES))
    assert seen.values.abs().median() > 1.5 * out.abs().median()
    transposed = Seen.of(out.transpose(1, 2).contiguous().transpose(1, 2))
    assert torch.equal(transposed.values, seen.values), "an output that is not contiguous is read in its own order"


def test_places_that_are_zero_tell_nothing() -> None:
    out = torch.zeros((1, 2, 8, 16))
    assert len(Seen.of(out).places) == 0
    run = WitnessedRun(lambda: AttentionOutput(out, None), *of_forward(Turned(torch.zeros(4)), Seen.of(out)))
    assert not run.can_tell
    run.turn()
    run.look(run())
    run.settle()
    assert (run.looked, run.stale) == (1, 0)
    out[0, 1] = 2.0
    assert 0 < len(Seen.of(out).places) < PLACES


def test_e4m3_is_turned_bit_by_bit() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[codes & 127 != 127].reshape(2, 127)
    v = codes.clone().view(torch.float8_e4m3fn)
    turned = Turned(v)
    turned.turn()
    assert torch.equal(v.float(), -codes.view(torch.float8_e4m3fn).float())
    assert HeadScaled(q=v, k=v, v=v, dtype=torch.bfloat16).v is v
    turned.turn()
    assert torch.equal(v.view(torch.uint8), codes)
    assert turned.sign == 1.0


# Graphs


def graph_of(replay: Callable[[torch.Tensor, torch.Tensor], None]) -> tuple[WitnessedGraph, torch.Tensor]:
    """A graph whose replay reads v and writes out, as `replay` does it."""
    v, out = torch.tensor([1.0, 2.0]), torch.empty((1, 1, 8, 16))
    expected = torch.arange(1.0, 129.0).reshape(out.shape)
    out.copy_(expected * v[0])
    graph = WitnessedGraph(lambda: replay(v, out), AttentionOutput(out, None), 10, *of_forward(Turned(v), Seen.of(out)))
    return graph, expected


def replayed(graph: WitnessedGraph, stretches: int = 3, count: int = 4) -> int:
    for _ in range(stretches):
        graph.begin()
        for _ in range(count):
            graph.turn()
            graph.look(graph())
        graph.settle()
    assert graph.looked == stretches * count
    return graph.stale


def test_a_graph_that_computes_is_believed() -> None:
    expected = graph_of(lambda v, out: None)[1]
    graph, _ = graph_of(lambda v, out: out.copy_(expected * v[0]))
    assert replayed(graph) == 0
    assert (graph.launches, graph.flushes) == (10, False)


@pytest.mark.parametrize("kept", ["nothing", "constant"])
def test_a_graph_that_launches_nothing_or_copies_is_found(kept: str) -> None:
    expected = graph_of(lambda v, out: None)[1]
    graph, _ = graph_of(lambda v, out: out.copy_(expected) if kept == "constant" else None)
    # V is turned once a stretch: a constant is right in every second one.
    assert replayed(graph, stretches=4) == (16 if kept == "nothing" else 8)
