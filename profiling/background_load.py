"""Another program on the GPU, on purpose: matrix products until its stdin ends. `python -m profiling.background_load UUID`.

Says "running" on stdout when the GPU is busy.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from profiling.leash import end_with_parent
from profiling.worker_process import ROOT

_SIDE, _AT_ONCE = 4096, 16
_COMMAND = (sys.executable, "-m", "profiling.background_load")
_SECONDS_TO_START = 120.0
_SECONDS_TO_END = 10.0


class NoLoad(Exception):
    """The load did not start; its text says why, in a sentence."""


@contextmanager
def background_load(device_id: str, command: tuple[str, ...] = _COMMAND) -> Iterator[None]:
    """Keep the GPU busy from another process while the context lasts. Raises NoLoad when that process does not get there."""
    process = subprocess.Popen(
        [*command, device_id], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    too_late = threading.Timer(_SECONDS_TO_START, process.kill)
    too_late.start()
    try:
        if process.stdout.readline().strip() != "running":
            process.kill()
            last = (process.stderr.read().strip().splitlines() or ["it said nothing"])[-1]
            raise NoLoad(f"The background load did not start: {last[:300]}")
        too_late.cancel()
        yield
    finally:
        too_late.cancel()
        process.stdin.close()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()


def main(device_id: str) -> None:
    """Be the load, until stdin ends."""
    end_with_parent()
    import torch

    from profiling.devices import cuda_device_of

    device = cuda_device_of(device_id)
    left, right = (torch.randn(_SIDE, _SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    torch.mm(left, right, out=product)
    torch.cuda.synchronize(device)
    print("running", flush=True)
    while not ended.is_set():
        for _ in range(_AT_ONCE):
            torch.mm(left, right, out=product)
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main(sys.argv[1])
