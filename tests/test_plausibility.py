"""The physics gate on import: a file's times against the data sheet, whatever the file says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.plausibility import flags_to_show, implausible, suspicions
from profiling.records import Flag, Latency, Measurement
from profiling.snapshot import Snapshot, read
from tests.records_for_tests import LONG, environment, gpu, in_interpreter, latency, on_gpu, recording

OWN_WORD = Flag(name="below peak", severity="ok", short="below physical peak", sentence="All is well.")


def taking(ms: float, fp8: bool = False, name: str = "NVIDIA H200", **peaks: float) -> Measurement:
    """A made-up v3 on a GPU of this name, each launch taking so long; it says of itself that all is well."""
    device = gpu().model_copy(update={"name": name, **peaks})
    return on_gpu("v3", fp8=fp8, latency=latency(ms), environment=environment(device), flags=(OWN_WORD,))


def fastest_ms(found: Latency) -> float:
    return float(found.samples_ms.numpy().min())


@pytest.mark.parametrize("fp8", [False, True])
def test_what_beats_the_data_sheet_by_more_than_a_tenth_is_implausible(fp8: bool) -> None:
    sheet = 1979.0 if fp8 else 989.5
    ms = LONG.flops / (sheet * 1.1 * 1e12) * 1000
    slower, faster = taking(ms * 1.03, fp8), taking(ms * 0.98, fp8)
    assert fastest_ms(slower.latency) > ms > fastest_ms(faster.latency)
    assert suspicions(slower) == ()
    (flag,) = suspicions(faster)
    assert (flag.name, flag.severity) == ("implausible", "bad")
    assert f"more than this device can do ({sheet * 1.1:,.0f})" in flag.sentence


def test_the_file_s_own_peak_and_word_are_not_trusted() -> None:
    boasting = taking(0.01, peak_bf16_tflops=900_000.0, measured_bf16_tflops=900_000.0)
    assert [flag.name for flag in suspicions(boasting)] == ["implausible", "other peak"]
    assert "a peak of 900,000 TFLOP/s; its data sheet gives 990 TFLOP/s" in suspicions(boasting)[1].sentence
    assert [flag.name for flag in flags_to_show(boasting)] == ["implausible", "other peak"]
    assert [flag.name for flag in flags_to_show(taking(2.0))] == []
    own = OWN_WORD.model_copy(update={"name": "implausible", "severity": "bad"})
    for time_ms in (2.0, 0.01):
        shown = flags_to_show(taking(time_ms).model_copy(update={"flags": (own,)}))
        assert [flag.name for flag in shown] == ["implausible"]
    snapshot = recording(kernels=("v2",)).model_copy(update={"measurements": (taking(2.0), boasting)})
    (sentence,) = implausible(read(snapshot.document))
    assert sentence.startswith("v3: The fastest launch makes ")


def test_the_pre_pass_is_judged_too() -> None:
    quick = on_gpu("v3", fp8=True, with_prepass=latency(0.2))
    assert [flag.name for flag in suspicions(quick)] == ["implausible"]


def test_a_warm_time_is_judged_by_operations_alone() -> None:
    def warm(ms: float, **changes: object) -> Measurement:
        return on_gpu("v2", warm=latency(ms).model_copy(update={"mode": "warm"}), **changes)

    assert [flag.name for flag in suspicions(warm(0.2))] == ["implausible"]
    # One query: few operations, and keys and values that a warm cache holds: faster than memory gives them is no wonder.
    problem = LONG.model_copy(update={"seq_len_q": 1, "causal": False})
    request = warm(2.0).request.model_copy(update={"problem": problem})
    memory_ms = 2 * 2 * 16 * 16384 * 128 / 4.8e12 * 1000
    quick = warm(memory_ms / 2, request=request, latency=latency(2 * memory_ms))
    assert suspicions(quick) == ()
    cold = quick.model_copy(update={"latency": latency(memory_ms / 2), "warm": None})
    assert [flag.name for flag in suspicions(cold)] == ["implausible"]


def test_a_gpu_without_a_data_sheet_is_said_to_be_unjudged() -> None:
    (flag,) = suspicions(taking(1e-3, name="NVIDIA H900"))
    assert (flag.name, flag.severity) == ("peak unknown", "info")


def test_what_was_not_timed_on_a_gpu_raises_no_suspicion() -> None:
    assert suspicions(in_interpreter("v3")) == suspicions(on_gpu("v3", passed=False)) == ()


def test_the_gallery_and_the_samples_are_plausible() -> None:
    root = Path(__file__).resolve().parent.parent
    for path in sorted((root / "app" / "gallery").glob("*.json")):
        snapshot = read(path.read_bytes())
        assert isinstance(snapshot, Snapshot)
        assert implausible(snapshot) == (), path.name
