"""The Compiler page: its fields, what it asked, what it showed last."""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import streamlit as st

from app import compiler_choices, state
from app.compiler_shown import Shown
from profiling.assembly import Assembler, failed
from profiling.compiler_process import Question
from profiling.records import RunRequest

COMPARED_KEY = "c_compare"
SHOW_KEY = "c_show"
SIDE_KEY = "c_side"
KERNEL_KEY = "c_part"
WITHIN_KEY = "c_within"
_LAST_KEY = "_compiled"
_REMEMBERED = 24
_AT_ONCE = 2


class Compilations:
    """What was asked of the compiler on this server: each question once, the answers kept ready to be shown.

    Two are compiled at once, as a page compares two; a third waits.
    """

    def __init__(self, make: Callable[[], Assembler] = Assembler) -> None:
        self._reader = make()
        self._free: queue.SimpleQueue[Assembler] = queue.SimpleQueue()
        for _ in range(_AT_ONCE):
            self._free.put(make())
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="compile")
        self._asked: OrderedDict[str, Future[Shown]] = OrderedDict()
        self._since: dict[str, float] = {}
        self._running: dict[str, Assembler] = {}
        self._lock = threading.Lock()

    def of(self, question: Question) -> Future[Shown]:
        """The answer, at once where it is on disk; a Shown without kernels has an error."""
        key = question.model_dump_json()
        with self._lock:
            if key not in self._asked:
                self._since[key] = time.monotonic()
                kept = self._reader.kept(question)
                self._asked[key] = _done(Shown(kept)) if kept else self._pool.submit(self._compile, key, question)
            self._asked.move_to_end(key)
            while len(self._asked) > _REMEMBERED:
                self._since.pop(self._asked.popitem(last=False)[0], None)
            return self._asked[key]

    def seconds(self, question: Question) -> float:
        """How long ago it was asked."""
        return time.monotonic() - self._since.get(question.model_dump_json(), time.monotonic())

    def stop(self, question: Question) -> None:
        """Callback: give up a question that has no answer yet."""
        key = question.model_dump_json()
        with self._lock:
            if key in self._running:
                self._running[key].stop()
            elif key in self._asked and self._asked[key].cancel():
                self._asked[key] = _done(Shown(failed(question, "cancelled", "Stopped before it was compiled.")))

    def again(self, question: Question) -> None:
        """Callback: forget a failure, so that it is tried again."""
        with self._lock:
            self._asked.pop(question.model_dump_json(), None)

    def _compile(self, key: str, question: Question) -> Shown:
        assembler = self._free.get()
        with self._lock:
            self._running[key] = assembler
        try:
            return Shown(assembler.answer(question))
        finally:
            with self._lock:
                self._running.pop(key, None)
            self._free.put(assembler)


def _done(shown: Shown) -> Future[Shown]:
    future: Future[Shown] = Future()
    future.set_result(shown)
    return future


@st.cache_resource(show_spinner=False)
def compilations() -> Compilations:
    """The one compiler of this server, shared by all sessions."""
    return Compilations()


def address_to_compiler(request: RunRequest, capability: int) -> dict[str, str]:
    """The Compiler page's address for what a request with tiles launches, on a compute capability."""
    return compiler_choices.address(request, capability)


def run_as_compiled(question: Question) -> None:
    """Leave for the Run page, its form asking for what was compiled here; what the page here does not decide stays as it is."""
    state.go_to_form(state.form_values() | compiler_choices.run_form(question), question.capability)


def compiler_values(side: str) -> dict[str, str | bool]:
    """A side's fields as they stand, without its letter; before they are first drawn, what the address says."""
    return {name: _field(f"{side}{name}", name, default) for name, default in compiler_choices.FIELDS.items()}


def _field(key: str, name: str, default: str | bool) -> str | bool:
    given: Any = st.session_state.get(key, st.query_params.get(key))
    if given is None or isinstance(given, bool):
        return default if given is None else given
    if isinstance(default, bool):
        return given == "true" if given in ("true", "false") else default
    return given if given in compiler_choices.OPTIONS[name] else default


def is_compared() -> bool:
    """Whether there is a second configuration."""
    return bool(st.session_state.get(COMPARED_KEY, st.query_params.get(COMPARED_KEY) == "true"))


def begin_to_compare() -> None:
    """Callback of the switch: the second configuration begins as the first. Its fields are there already, out of sight."""
    if st.session_state.get(COMPARED_KEY):
        first, second = compiler_choices.SIDES
        state.set_form({f"{second}{name}": value for name, value in compiler_values(first).items()})


def compiler_fields_now() -> dict[str, str | bool]:
    """Every field of the page by its key, as it stands."""
    both = {f"{side}{name}": one for side in compiler_choices.SIDES for name, one in compiler_values(side).items()}
    return both | {COMPARED_KEY: is_compared()}


def compiler_view() -> dict[str, str]:
    """Which view of the texts is chosen, by its key; nothing before the first."""
    return {SHOW_KEY: st.session_state[SHOW_KEY]} if st.session_state.get(SHOW_KEY) else {}


def compiler_part(titles: Collection[str]) -> str | None:
    """Which of several kernels is chosen, by its title; None: none of these."""
    given = st.session_state.get(KERNEL_KEY, st.query_params.get(KERNEL_KEY))
    return given if given in titles else None


def forget_unless_among(key: str, options: Collection[str]) -> None:
    """Before a widget is drawn: a choice of earlier options that is none of these is no choice."""
    if st.session_state.get(key) not in options:
        st.session_state.pop(key, None)


def use_compiler_tiles(side: str, tiles: Any) -> None:
    """Callback: put tiles that work into a side's fields."""
    state.set_form({f"{side}{name}": str(getattr(tiles, name)) for name in compiler_choices.TILE_FIELDS})


def last_compiled(side: str) -> Shown | None:
    """What a side showed last in this tab."""
    return st.session_state.get(f"{_LAST_KEY}{side}")


def remember_compiled(side: str, shown: Shown) -> None:
    """Keep what a side shows, for while the next one is compiled."""
    st.session_state[f"{_LAST_KEY}{side}"] = shown
