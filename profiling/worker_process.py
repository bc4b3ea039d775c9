"""The parent's hold on one worker process: start it, write it lines, hear it, kill it with everything it started."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from profiling.records import INTERPRETER, Done, Progress, Ready, Result, worker_message

ROOT = Path(__file__).resolve().parent.parent
MAX_LINE_BYTES = 64 << 20
STDERR_LINES = 200
STDERR_LINE_BYTES = 4096
SECONDS_TO_EXIT_AFTER_EOF = 2.0
SECONDS_TO_READ_AFTER_EXIT = 5.0


@dataclass(frozen=True)
class Ended:
    """A worker's process is gone. sentence: how, for a person; raw: the end of what it wrote on stderr."""

    sentence: str
    raw: str


@dataclass(frozen=True)
class Garbled:
    """A worker wrote a line that is no message. sentence: what was wrong with it; raw: how the line begins."""

    sentence: str
    raw: str


Event = Ready | Progress | Result | Done | Ended | Garbled


def worker_command(device_id: str) -> Sequence[str]:
    """The command line of a worker on this machine."""
    return (sys.executable, "-m", "profiling.worker", "--device", device_id)


def _worker_environment(device_id: str) -> dict[str, str]:
    """This process's environment variables, with Triton's interpreter switched on for the interpreter alone."""
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if device_id == INTERPRETER:
        variables["TRITON_INTERPRET"] = "1"
    return variables


class WorkerProcess:
    """A worker in a session of its own; hear(self, event) is called from a thread for all it says, Ended last and once.

    messages: what its lines may be; each is an event, beside Ended and Garbled. Raises OSError when the command cannot be
    started.
    """

    def __init__(
        self,
        device_id: str,
        command: Sequence[str],
        hear: Callable[[WorkerProcess, Any], None],
        messages: TypeAdapter = worker_message,
    ) -> None:
        self._hear, self._messages = hear, messages
        self._stderr: collections.deque[bytes] = collections.deque(maxlen=STDERR_LINES)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=_worker_environment(device_id),
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._read_messages, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._keep_stderr, args=(self._process.stderr,), daemon=True),
        ]
        for thread in (*self._readers, threading.Thread(target=self._await_end, daemon=True)):
            thread.start()

    @property
    def pid(self) -> int:
        """The process id, which is the id of its process group too."""
        return self._process.pid

    def write(self, line: str) -> None:
        """Send one line. A worker that is gone already is no error here: Ended tells of it."""
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def end_input(self) -> None:
        """Nothing more is written to it: it ends when it has done what it was sent."""
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()

    def kill(self) -> None:
        """SIGKILL to the process and all in its group, compilers too; Ended follows."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def join(self, timeout_s: float) -> None:
        """Wait until the process is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def stderr_tail(self) -> str:
        """The last lines that it wrote on stderr."""
        return b"".join(self._stderr.copy()).decode(errors="replace").strip()

    def _read_messages(self, stdout: IO[bytes]) -> None:
        with stdout:
            while (line := stdout.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                event = _parsed(line, self._messages)
                self._hear(self, event)
                if isinstance(event, Garbled):
                    self.kill()
                    return
            if len(line) == MAX_LINE_BYTES:
                self._hear(self, Garbled(f"The worker wrote a line of more than {MAX_LINE_BYTES >> 20} MB", _beginning(line)))
        try:  # a line cut short means that it died while writing: Ended says so
            self._process.wait(SECONDS_TO_EXIT_AFTER_EOF)
        except subprocess.TimeoutExpired:
            self.kill()

    def _keep_stderr(self, stderr: IO[bytes]) -> None:
        with stderr:
            while line := stderr.readline(STDERR_LINE_BYTES):
                self._stderr.append(line)

    def _await_end(self) -> None:
        code = self._process.wait()
        self.kill()  # what the worker had started outlives it, and may hold its pipes open
        for thread in self._readers:
            thread.join(SECONDS_TO_READ_AFTER_EXIT)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._hear(self, Ended(f"The worker {_how_it_ended(code)}", self.stderr_tail()))


def _parsed(line: bytes, messages: TypeAdapter) -> Any:
    try:
        return messages.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        reason = f"{where}: {problem['msg']}" if where else problem["msg"]
        return Garbled(f"The worker wrote a line that is no message ({reason[:200]})", _beginning(line))


def _beginning(line: bytes) -> str:
    return line[:2000].decode(errors="replace").strip()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was ended by signal {-code}"
