"""The Article page: what the article claims beside what was measured here, claim by claim, its blocks, and how to run it."""

from __future__ import annotations

import streamlit as st

from app import article_shown, look, state
from app.figures import article as figure
from app.state.article import HERE, RECORDINGS, RunJob, SuiteRun
from app.views import article_blocks, article_run, run_result
from profiling import article, words
from profiling.article import FACTS, FACTS_HOW, GPU, Run

_TABLE, _CHART = 1.15, 1.0


def page() -> None:
    """The verdicts in the title, then the table with its chart, the claims, the block sizes, the article's code, a run."""
    problem = state.problem()
    if problem is not None:
        look.field_error(problem)
    title = st.container()
    chosen = _chosen(state.article_runs())
    jobs = () if chosen is None else state.jobs_of_run(chosen)
    run = Run.of(job.snapshot for job in jobs)
    found = article.judged(run)
    with title:
        where = f", on {article_shown.device_words(run)}" if run.devices else ""
        look.title(f"The article’s {len(found)} claims{where}: {article.summary(found)}")
    _source(chosen, jobs, run)
    left, right = st.columns([_TABLE, _CHART], gap="large")
    with left:
        look.heading("Its table")
        st.html(article_shown.table_html(run))
        look.caption(
            f"Claimed: the article’s numbers, on an {GPU}; nothing of it was measured by FlashScope. Measured: medians, every "
            "output checked against float64. vs native: how many times as fast as native in the same job."
        )
    with right:
        drawn = figure.chart(run, look.palette())
        look.heading(drawn.title)
        st.plotly_chart(drawn.figure, theme=None, config={"displayModeBar": False}, key="article_chart", alt=drawn.alt)
        look.caption(drawn.caption)
    look.heading("Which claims hold")
    st.html(article_shown.claims_html(found))
    look.caption("A gain holds where it is at least the lower number claimed. Only measurements of one job are compared.")
    left, right = st.columns(2, gap="large")
    with left:
        look.heading("What its own code does")
        with st.container(gap="xsmall"):
            for sentence in FACTS:
                look.sentence(sentence)
        look.caption(FACTS_HOW)
    with right:
        article_run.show()
    article_blocks.show()


def _chosen(runs: dict[str, SuiteRun]) -> SuiteRun | None:
    """The run whose numbers are shown: the first, or the one that was picked of several."""
    if not runs:
        return None
    if st.session_state.get(state.ARTICLE_FROM_KEY) not in runs:
        st.session_state.pop(state.ARTICLE_FROM_KEY, None)
    if len(runs) == 1:
        return next(iter(runs.values()))
    with st.container(width=360):
        name = st.selectbox(
            "Measurements", list(runs), format_func=lambda name: _title(runs[name]), key=state.ARTICLE_FROM_KEY,
            label_visibility="collapsed",
        )  # fmt: skip
    return runs[name]


def _title(run: SuiteRun) -> str:
    if run.name == HERE:
        return "This tab’s run, not saved"
    if run.name == RECORDINGS:
        return "Recordings that ship with FlashScope"
    return f"{'Imported' if run.is_imported else 'Saved'} run of {run_result.when(run.began)}"


def _source(chosen: SuiteRun | None, jobs: tuple[RunJob, ...], run: Run) -> None:
    """Where the numbers come from, and the way to each job that they are of."""
    if chosen is None or not run.table.rows:
        look.sentence("None of its problems has run here, and no recording of one is there.", strong="Nothing is measured yet.")
        return
    rows = run.table.rows
    missing = [words.tokens(cell.problem.seq_len_q) for cell in article.the_suite().cells
               if run.row(cell.problem.seq_len_q) is None]  # fmt: skip
    what = f"{_title(chosen)}: {len(rows)} of {len(article.the_suite().cells)} problems"
    left = f"; {', '.join(missing)} tokens not run" if missing else ""
    where = {id(job.snapshot): job for job in jobs}
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="article-source"):
        look.caption(f"{what}{left}. {' and '.join(run.devices)}, {run_result.when(rows[0].snapshot.created_at)}.")
        for row in rows:
            job = where[id(row.snapshot)]
            st.page_link(
                state.page(job.page), label=f"Open {words.tokens(row.cell.problem.seq_len_q)}", icon=":material/open_in_new:",
                query_params=job.address,
            )  # fmt: skip
