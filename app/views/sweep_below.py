"""Below the map: the ranking, the table recommended for this GPU, time over seq_len, parallel coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import look, state, sweep_tables
from app.figures import parallel, scaling
from app.figures.style import Absent, Chart
from app.how_taken import COLUMNS
from app.sweep_shown import Shown, alike

_RECOMMENDED = "Recommended for {}, the article’s beside it"


def ranked(shown: Shown) -> None:
    """The configurations of this series that have a time, best first."""
    rows = sweep_tables.ranked(shown)
    if not rows:
        return
    look.heading("Ranked", "measured")
    look.table(rows, "Table: ranked", {**COLUMNS["ranking"], **sweep_tables.EXPLAINED})
    look.caption(sweep_tables.about_ranks(shown))


def by_length(shown: Shown) -> None:
    """The best of each length beside the article's, and how time grows."""
    left, right = st.columns([1.2, 1], gap="large")
    of_lengths = _shown(shown, ("tokens",))
    is_foreign = shown.sweep.sweep_id in state.foreign_sweeps()
    title = _RECOMMENDED.format(shown.sweep.device_name if is_foreign else "this GPU")
    with left:
        rows = sweep_tables.recommended(of_lengths)
        if rows:
            look.heading(title, "measured")
            look.sentence(sweep_tables.in_words(of_lengths))
            look.table(rows, f"Table: {title}", COLUMNS["recommended"])
            look.caption(sweep_tables.about_recommended(shown))
        else:
            look.absences([Absent(title, "no length has a GPU’s time.")])
    with right:
        _chart(scaling.chart(_shown(shown, ("tokens", "version", "format")), shown, look.palette()), "sweep_scaling")


def in_common(shown: Shown) -> None:
    """Parallel coordinates; lines can be picked by what they have in common."""
    found = parallel.choices(shown)
    picked = state.picked_lines(list(found))
    drawn = parallel.chart(shown, dict(found[one] for one in picked), look.palette())
    _chart(drawn, "sweep_parallel")
    if isinstance(drawn, Chart) and found:
        st.pills("Only lines through", list(found), selection_mode="multi", key=state.SWEEP_ONLY_KEY, width="content")


def _shown(shown: Shown, but: Sequence[str]) -> list[Shown]:
    return [state.shown_series(shown.sweep, series) for series in alike(shown.sweep, shown.series, but)]


def _chart(drawn: Chart | Absent, key: str) -> None:
    if isinstance(drawn, Absent):
        look.absences([drawn])
    else:
        look.chart(drawn, key=key, with_table=state.tables_shown())
