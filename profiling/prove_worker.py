"""The worker, with what proving needs beside the versions: v2 on one sequence more, and v2 timed by CUPTI.

A job goes the way of every other; the second version's samples are the kernel times that CUPTI recorded for its launches.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kernels.registry import VERSIONS, Version
from profiling import worker
from profiling.prove import BY_CUPTI, KERNEL, ONE_MORE

if TYPE_CHECKING:
    from profiling.bench import Bench
    from profiling.measure import Run


def add_versions() -> None:
    """Put both into this process's registry."""
    for name, module, summary in (
        (ONE_MORE, "profiling.one_more_sequence", "v2, on one sequence more than it is asked for."),
        (BY_CUPTI, VERSIONS[KERNEL].module, "v2, whose times are CUPTI's."),
    ):
        VERSIONS[name] = Version(name, name, module, summary)


def _bench(device_id: str) -> Bench:
    bench = worker.make_bench(device_id)
    if bench.environment.device.kind == "gpu":
        from profiling.cupti_timer import cupti_timer

        bench.make_timer = lambda device: cupti_timer(device, _is_by_cupti)
    return bench


def _is_by_cupti(run: Run) -> bool:
    """A case's run launches that case's own forward."""
    from profiling.case import Case

    case = getattr(run.launch, "__self__", None)
    return isinstance(case, Case) and case.request.kernel == BY_CUPTI


if __name__ == "__main__":
    add_versions()
    sys.exit(worker.main(bench_of=_bench))
