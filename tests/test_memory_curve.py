"""The memory curve: which lengths are launched, and every way in which it ends."""

from __future__ import annotations

import pytest

from kernels.problem import MAX_SEQ_LEN, AttentionProblem
from profiling.memory_curve import CAP_S, LAUNCHES_S, SHORTEST, Launched, lengths, take_curve

PROBLEM = AttentionProblem(seq_len_q=3000, seq_len_kv=3000)


class Device:
    """A made-up GPU: a launch takes square_ns × N² and adds bytes_a_token × N; the clock is its own."""

    def __init__(self, square_ns: float = 0.0, compile_s: float = 0.0, fails_at: int | None = None) -> None:
        self.now_s, self.square_ns, self.compile_s, self.fails_at = 0.0, square_ns, compile_s, fails_at
        self.launched: list[int] = []

    def clock(self) -> float:
        return self.now_s

    def launch(self, problem: AttentionProblem) -> Launched:
        length = problem.seq_len_kv
        if length == self.fails_at:
            raise RuntimeError("CUDA out of memory. Tried to allocate 12 GiB")
        took_s = self.square_ns * 1e-9 * length**2 + (0.0 if self.launched else self.compile_s)
        self.now_s += took_s
        self.launched.append(length)
        return Launched(100 * length, took_s)

    def curve(self, problem: AttentionProblem = PROBLEM, fits=lambda _: ""):
        return take_curve("v2", problem, self.launch, fits, clock=self.clock)


def test_every_power_of_two_up_to_what_fits_is_launched_once_and_the_shortest_twice():
    device = Device()
    found = device.curve(fits=lambda each: "16,384 tokens need 2 GiB" if each.seq_len_q > 8192 else "")
    assert device.launched == [512, 512, 1024, 2048, 4096, 8192]
    assert [(point.seq_len_q, point.added_bytes) for point in found.points] == [
        (length, 100 * length) for length in (512, 1024, 2048, 4096, 8192)
    ]
    assert found.ended_by == "16,384 tokens need 2 GiB"


def test_it_ends_before_launches_take_more_than_their_second():
    device = Device(square_ns=0.01, compile_s=2.0)
    found = device.curve()
    longest = found.points[-1].seq_len_kv
    # Each takes four times the one before: all up to the longest take at most 4/3 of it, and with the next one over 1 s.
    in_all = 0.01e-9 * sum(point.seq_len_kv**2 for point in found.points[1:])
    assert in_all <= LAUNCHES_S < in_all + 0.01e-9 * (2 * longest) ** 2
    assert found.ended_by == f"{2 * longest:,} tokens would have taken longer than the 1 s for these launches"


def compiling(device: Device, at: set[int], compile_s: float):
    """The device's launch, slowed at some lengths."""
    steady = device.launch

    def launch(each: AttentionProblem) -> Launched:
        found = steady(each)
        extra_s = compile_s if each.seq_len_kv in at else 0.0
        device.now_s += extra_s
        return Launched(found.added_bytes, found.took_s + extra_s)

    return launch


def test_a_length_that_compiles_again_does_not_end_it_where_the_run_s_own_time_is_known():
    def longest(expected_s: float | None) -> int:
        device = Device(square_ns=0.001)
        launch = compiling(device, {1024}, 0.5)
        return take_curve("v2", PROBLEM, launch, lambda _: "", expected_s, device.clock).points[-1].seq_len_kv

    assert longest(None) == 1024
    assert longest(0.001e-9 * 3000**2) > 8192


def test_compiling_everywhere_ends_it_after_four_seconds():
    device = Device(square_ns=1e-6)
    launch = compiling(device, {512 * 2**k for k in range(10)}, 1.0)
    found = take_curve("v2", PROBLEM, launch, lambda _: "", 1e-12, device.clock)
    assert device.now_s <= CAP_S + 1.1
    # The shortest is launched twice, then come 1,024 and 2,048.
    assert found.ended_by == "compiling took the 4 s there are before 4,096 tokens"


def test_a_launch_that_fails_ends_it_and_keeps_what_there_is():
    found = Device(fails_at=4096).curve()
    assert found.points[-1].seq_len_kv == 2048
    assert found.ended_by.startswith("4,096 tokens failed: ")
    assert "memory" in found.ended_by


def test_an_error_that_the_process_does_not_survive_is_raised():
    def launch(_problem):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        take_curve("v2", PROBLEM, launch, lambda _: "")


def test_it_ends_where_the_kernels_do():
    found = Device().curve()
    assert found.points[-1].seq_len_kv == MAX_SEQ_LEN
    assert found.ended_by == f"{MAX_SEQ_LEN:,} tokens are the longest that the kernels take"


def test_nothing_fits():
    found = Device().curve(fits=lambda _: "512 tokens need 2 GiB; 1 GiB could be had")
    assert found.points == ()


def test_both_lengths_keep_their_proportion():
    sides = [(each.seq_len_q, each.seq_len_kv) for each in lengths(AttentionProblem(seq_len_q=1, seq_len_kv=4096))]
    assert sides[0] == (1, SHORTEST)
    assert sides[-1] == (1024, MAX_SEQ_LEN)
