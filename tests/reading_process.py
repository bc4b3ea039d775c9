"""A process that does nothing but read files, so that its memory and its time are the reader's. Started by Reader.

It takes files on stdin, each after its length in 8 bytes, and answers with a line of JSON each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from profiling.snapshot import NotASnapshot, read

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Answer:
    """What read() gave: 'Snapshot', 'NewerSnapshot' or 'sentence'; the id or the sentence; and the process's peak so far.

    cpu_seconds is what it takes on a machine that does nothing else; seconds what it took on this one.
    """

    kind: str
    text: str
    seconds: float
    cpu_seconds: float
    peak_rss_mb: float


class Reader:
    """Reads files in a fresh process. A context manager; what read() must not raise ends the process, and so the test."""

    def __enter__(self) -> Reader:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reading_process"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)

    def read(self, data: bytes) -> Answer:
        """Have one file read."""
        self._process.stdin.write(len(data).to_bytes(8, "little") + data)
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the reader died on {data[:300]!r}… of {len(data):,} bytes"
        return Answer(**json.loads(line))


def _answer(data: bytes) -> Answer:
    begin, cpu_begin = time.perf_counter(), time.process_time()
    try:
        snapshot = read(data)
        kind, text = type(snapshot).__name__, snapshot.id
    except NotASnapshot as error:
        kind, text = "sentence", str(error)
    return Answer(kind, text, time.perf_counter() - begin, time.process_time() - cpu_begin, _peak_rss_mb())


def _peak_rss_mb() -> float:
    """The most memory that this program has held, in MB (10⁶ bytes); getrusage would count its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def _main() -> None:
    while length := sys.stdin.buffer.read(8):
        print(json.dumps(vars(_answer(sys.stdin.buffer.read(int.from_bytes(length, "little"))))), flush=True)


if __name__ == "__main__":
    _main()
