"""Many different snapshots with made-up numbers, quickly made: the same number, the same snapshot."""

from __future__ import annotations

import functools
import random
from datetime import UTC, datetime, timedelta

from kernels.problem import AttentionProblem
from profiling.records import Measurement
from profiling.snapshot import Snapshot
from tests.records_for_tests import failed, in_interpreter, on_gpu

TITLES = ("Größe der Kacheln", "100% of peak_rate", "ΑΘΗΝΑ prefill", "Straße nach Île-de-France", "baseline before the rewrite")
NOTES = ("", "Clocks were locked.", "See\nthe second line: 50 % slower?", "naïve İstanbul ﬁt", "a_b is not a%b")
AUTHORS = ("", "Ada", "Grace", "Łukasz")
TAGS = ("nightly", "größe", "h200", "100%", "a_b")
LENGTHS, HEAD_DIMS = (256, 4096, 16384, 32768), (64, 128)


@functools.cache
def _measurement(kind: str, kernel: str, fp8: bool, seq_len: int, head_dim: int, causal: bool, gpu: str) -> Measurement:
    made = {"gpu": on_gpu, "wrong": on_gpu, "interpreter": in_interpreter, "failed": failed}[kind]
    found = made(kernel, **({"passed": False} if kind == "wrong" else {}), **({"fp8": fp8} if kind in ("gpu", "wrong") else {}))
    problem = AttentionProblem(seq_len_q=seq_len, seq_len_kv=seq_len, head_dim=head_dim, causal=causal)
    request = found.request.model_copy(update={"problem": problem})
    device = found.environment.device
    device = device.model_copy(update={"name": gpu}) if device.kind == "gpu" else device
    environment = found.environment.model_copy(update={"device": device})
    return found.model_copy(update={"request": request, "environment": environment})


def varied(number: int) -> Snapshot:
    """A snapshot of one to three measurements with words of its own."""
    rng = random.Random(number)
    kind = rng.choice(("gpu", "gpu", "gpu", "interpreter", "failed", "wrong"))
    problem = (rng.choice(LENGTHS), rng.choice(HEAD_DIMS), rng.random() < 0.5, rng.choice(("NVIDIA H200", "NVIDIA L4")))
    kernels = rng.sample(("native", "v1", "v2", "v3"), rng.randint(1, 3)) if kind != "failed" else ["v3"]
    fp8 = rng.random() < 0.3 and kind in ("gpu", "wrong")
    return Snapshot(
        title=f"{rng.choice(TITLES)} {number}",
        note=rng.choice(NOTES),
        author=rng.choice(AUTHORS),
        tags=tuple(rng.sample(TAGS, rng.randint(0, 2))),
        created_at=(datetime(2026, 11, 1, tzinfo=UTC) + timedelta(seconds=number)).isoformat(),
        measurements=tuple(_measurement(kind, kernel, fp8 and kernel == "v3", *problem) for kernel in kernels),
    )
