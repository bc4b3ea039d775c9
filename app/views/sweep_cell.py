"""Beside the map: the fastest and what it wins, and the cell that is looked at with the ways on from it."""

from __future__ import annotations

import streamlit as st

from app import flag_words, look, state
from app.figures import compiled
from app.how_taken import COMPILED_ALONE
from app.sweep_shown import Pair, Shown, noted, said, tflops
from kernels.architecture import ARCHITECTURES
from profiling import words
from profiling.sweep_record import Gain, snippet


def fastest(shown: Shown) -> None:
    """The first of the ranking: its speed, and how much better it is than the default and than the article's pair."""
    best = shown.best
    if best is None:
        look.heading("No ranking yet" if not shown.is_interpreted else "No ranking")
        look.sentence(shown.ranking.over_default.sentence)
        return
    look.heading("Fastest", "measured")
    row = shown.ranking.best
    span = f"{words.milliseconds(row.median_ms)}, {words.milliseconds(row.low_ms)} to {words.milliseconds(row.high_ms)}"
    with st.container(key="sweep-fastest"):
        look.metrics([(best[0].title, f"{words.three_digits(tflops(best))} TFLOP/s", span)])
    tied = [shown.sweep.by_key[one.key][0].title for one in shown.ranking.tied[1:]]
    if tied:
        look.sentence(f"{'; '.join(tied[:3])}{f'; and {len(tied) - 3} more' * (len(tied) > 3)}.", strong="Not told apart from:")
    _gain("Over the default:", shown.ranking.over_default)
    _gain("Over the article’s pair:", shown.ranking.over_article)


def _gain(strong: str, gain: Gain) -> None:
    interval = f" The interval: {words.ratio(gain.low)} to {words.ratio(gain.high)}." if _has_interval(gain) else ""
    look.sentence(f"{gain.sentence}{interval}", strong=strong)


def _has_interval(gain: Gain) -> bool:
    return gain.low is not None and gain.high is not None and gain.low < gain.high


def looked_at(shown: Shown) -> None:
    """The cell that was chosen: what came of it, its snippet, where to go with it."""
    keys = [pair[0].key for spot in shown.spots for pair in spot.pairs]
    names = {key: _name(shown, key) for key in keys}
    state.chosen_sweep_cell(keys)
    first = shown.first()
    key = st.selectbox(
        "Cell", keys, index=keys.index(first) if first in keys else 0, format_func=names.__getitem__, key=state.SWEEP_CELL_KEY
    )
    pair = shown.sweep.by_key[key]
    look.sentence(said(pair))
    _noted(shown, pair)
    st.code(snippet(pair[0].tiles), language=None, wrap_lines=True)
    _ways_on(shown, key)
    report = pair[1].report
    if report is not None:
        drawn = compiled.chart_of(report, look.palette())
        look.heading(drawn.title, drawn.provenance)
        st.plotly_chart(drawn.figure, theme=None, config={"displayModeBar": False}, key="sweep_report", alt=drawn.alt)
        if state.tables_shown():
            look.table(drawn.table, f"Table: {drawn.title}", {**drawn.explained, "compiled in": COMPILED_ALONE})


def _noted(shown: Shown, pair: Pair) -> None:
    """What was noted against the time, and which GPU took it where several shared the cells."""
    known = pair[1].best_known
    chips = [(flag.severity, flag.short, flag_words.sentence(flag)) for flag in noted(pair)]
    if known is not None and len(shown.sweep.plan.devices) > 1:
        device = known.environment.device
        chips.insert(0, ("info", device.short_name, f"Timed on {device.name}, {device.id}."))
    if chips:
        look.chips(chips)


def _name(shown: Shown, key: str) -> str:
    """Nothing in it changes while the sweep runs: the browser holds a choice by its words."""
    cell, _ = shown.sweep.by_key[key]
    return " · ".join([cell.title, *(role for role in cell.roles if role != "grid")])


def _ways_on(shown: Shown, key: str) -> None:
    cell, outcome = shown.sweep.by_key[key]
    can_run = outcome.status in ("pending", "measured", "untried")
    with st.container(horizontal=True, gap="small", key="sweep-ways-on"):
        if st.button(
            "Run this", type="primary" if can_run else "secondary", icon=":material/arrow_forward:", disabled=not can_run,
            help="Puts it, with its problem, into the Run page’s form.", key="sweep_run",
        ):  # fmt: skip
            state.run_cell(cell, shown.sweep.capability)
        target = shown.sweep.capability if shown.sweep.capability in ARCHITECTURES else state.compile_for()
        if st.button("Read its code", icon=":material/code:", help="From TTIR to SASS.", key="sweep_code"):
            state.go_to("compiler", state.address_to_compiler(cell.request, target))
