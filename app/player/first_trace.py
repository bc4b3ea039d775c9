"""Makes first_trace.json.gz, the traces that the Softmax page begins with: python -m app.player.first_trace

One job in the interpreter, every version that can be watched on the page's default problem. To be run again when a kernel's
arithmetic or the record of a trace changes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from app.player.choices import DEFAULTS, VERSIONS, Choices
from kernels.registry import VERSIONS as REGISTRY
from profiling.job_queue import JobQueue
from profiling.records import Measurement, RunRequest
from profiling.snapshot import Snapshot, file_of

FIRST_TRACE = Path(__file__).with_name("first_trace.json.gz")


def requests() -> tuple[RunRequest, ...]:
    """The page's default version first, then the others that the interpreter can run."""
    interpretable = [version for version in VERSIONS if REGISTRY[version.partition(" ")[0]].interpretable]
    ordered = sorted(interpretable, key=lambda version: version != DEFAULTS["version"])
    return tuple(Choices.of({**DEFAULTS, "version": version}).requests()[0] for version in ordered)


def _interpreted() -> tuple[Measurement, ...]:
    queue = JobQueue()
    try:
        view = queue.wait(queue.submit(requests(), "first trace"), timeout_s=600)
    finally:
        queue.close()
    for measurement in view.results:
        if measurement is None or measurement.tiles_trace is None or not measurement.tiles_trace.replay.passed:
            raise SystemExit(f"There is no proved trace of {measurement.label if measurement else 'a version'}: {measurement}")
    return tuple(measurement for measurement in view.results if measurement is not None)


if __name__ == "__main__":
    snapshot = Snapshot(
        title="The online softmax, tile by tile",
        note="Every version on 256 tokens, in Triton's interpreter on a CPU.",
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        measurements=_interpreted(),
    )
    FIRST_TRACE.write_bytes(file_of(snapshot))
    print(f"{FIRST_TRACE.name}: {FIRST_TRACE.stat().st_size:,} bytes, {snapshot.id}")
