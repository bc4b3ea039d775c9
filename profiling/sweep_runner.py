"""The sweeps of one server: each in a thread of its own, seen by all sessions, kept in the store, resumed after a restart.

The store is opened by the first sweep that is asked for. Imports neither torch nor Triton.
"""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, datetime

from profiling.records import DeviceFacts
from profiling.runner import Runner
from profiling.sweep_cells import cells_of, known_of
from profiling.sweep_record import Sweep, SweepPlan, SweepRow, SweepState
from profiling.sweep_run import SweepRun
from profiling.sweep_store import SweepStore

_MOST_OVER = 8
"""Sweeps that are over and were looked at are remembered, so that a page need not read them from the store each time."""
_SECONDS_TO_STOP = 30.0


def planned(plan: SweepPlan, devices: tuple[DeviceFacts, ...], owner: str) -> Sweep:
    """A new sweep, with what is known of its cells at once. Raises ValueError, in one sentence, where it is not possible."""
    facts = [next((one for one in devices if one.id == device), None) for device in plan.devices]
    for device, found in zip(plan.devices, facts, strict=True):
        if found is None:
            raise ValueError(f"device = {device} is not here: it can be {', '.join(one.id for one in devices)}.")
    models = sorted({one.name for one in facts})
    if len(models) > 1:
        raise ValueError(f"devices of several models ({', '.join(models)}) are not possible: sweep each model on its own.")
    capability = facts[0].capability if facts[0].kind == "gpu" else None
    if facts[0].kind == "interpreter" and plan.budget is not None:
        raise ValueError(f"budget = {plan.budget} is not possible in the interpreter: it has no GPU time to search by.")
    cells = cells_of(plan, capability)
    outcomes = known_of(plan, cells, capability)
    done = sum(one.is_over for one in outcomes)
    return Sweep(
        sweep_id=uuid.uuid4().hex[:12], plan=plan, created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        owner=owner, device_name=facts[0].name, capability=capability, cells=cells, outcomes=outcomes, change=done,
        state=SweepState(status="running", phase="compiling", done=done, total=len(cells)),
    )  # fmt: skip


class Sweeps:
    """Every sweep that this server runs or has in its store. All methods may be called from any thread.

    runner: where the jobs go. store_url: as profiling.store.Store understands it. Raises StoreProblem where the store does.
    """

    def __init__(self, runner: Runner, store_url: str = "") -> None:
        self._runner, self._url = runner, store_url
        self._opened: SweepStore | None = None
        self._lock = threading.RLock()
        self._runs: dict[str, tuple[SweepRun, threading.Thread]] = {}
        self._over: dict[str, Sweep] = {}

    def start(self, plan: SweepPlan, owner: str) -> str:
        """Begin a sweep and return its id. Raises ValueError, in one sentence, where it is not possible."""
        sweep = planned(plan, self._runner.devices(), owner)
        with self._lock:
            self._store().create(sweep)
            self._begin(sweep)
        return sweep.sweep_id

    def resume(self, sweep_id: str) -> None:
        """Go on with a sweep that was paused or interrupted; of one that runs here, nothing. Raises StoreProblem."""
        with self._lock:
            run = self._running(sweep_id)
            if run is None:
                self._begin(self._store().take(sweep_id))

    def pause(self, sweep_id: str) -> None:
        """Stop after the job that runs; of one that does not run here, nothing."""
        if (run := self._running(sweep_id)) is not None:
            run.pause()

    def cancel(self, sweep_id: str) -> None:
        """End it for ever; what is finished stays. Raises StoreProblem where another process runs it, or it is over."""
        run = self._running(sweep_id)
        if run is not None:
            run.cancel()
        else:
            self._store().cancel(sweep_id)

    def view(self, sweep_id: str) -> Sweep:
        """The sweep as it is now. Raises KeyError when there is none."""
        with self._lock:
            if sweep_id in self._runs:
                return self._runs[sweep_id][0].view()
            if sweep_id in self._over:
                return self._over[sweep_id]
        found = self._store().get(sweep_id)
        if found is None:
            raise KeyError(sweep_id)
        if found.state.is_over:
            with self._lock:
                self._over[sweep_id] = found
                while len(self._over) > _MOST_OVER:
                    del self._over[next(iter(self._over))]
        return found

    def listed(self, limit: int = 50) -> tuple[SweepRow, ...]:
        """The newest sweeps, those that run here as they are now."""
        found = []
        for row in self._store().listed(limit):
            run = self._running(row.sweep_id)
            state = None if run is None else run.view().state
            now = {} if state is None else {"status": state.status, "done": state.done, "total": state.total}
            found.append(row.model_copy(update=now))
        return tuple(found)

    def close(self) -> None:
        """Pause all that run, at once, and let the store go."""
        with self._lock:
            runs = tuple(self._runs.values())
        for run, _ in runs:
            run.pause(now=True)
        for _, thread in runs:
            thread.join(_SECONDS_TO_STOP)
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _store(self) -> SweepStore:
        with self._lock:
            self._opened = self._opened or SweepStore(self._url)
            return self._opened

    def _running(self, sweep_id: str) -> SweepRun | None:
        with self._lock:
            run, _ = self._runs.get(sweep_id, (None, None))
            return None if run is None or run.has_ended else run

    def _begin(self, sweep: Sweep) -> None:
        """With the lock. A run that has ended stays in view until it is resumed."""
        store = self._store()
        run = SweepRun(sweep, self._runner, lambda outcomes, state: store.put(sweep.sweep_id, outcomes, state))
        thread = threading.Thread(target=run.run, name=f"sweep {sweep.sweep_id}", daemon=True)
        self._runs[sweep.sweep_id] = run, thread
        self._forget()
        thread.start()

    def _forget(self) -> None:
        """Of runs that have ended, the last few are enough: the store has them all."""
        ended = [sweep_id for sweep_id, (run, _) in self._runs.items() if run.has_ended]
        for sweep_id in ended[:-_MOST_OVER]:
            del self._runs[sweep_id]
