"""The app's entry: page configuration and the list of pages."""

import sys
from pathlib import Path

import streamlit as st

APP = Path(__file__).resolve().parent
# `streamlit run app/main.py` puts app/ on the path, where a module of ours hides one of Python's; what holds it belongs there.
sys.path[:] = [str(APP.parent), *(entry for entry in sys.path if entry not in (str(APP), str(APP.parent)))]

from app import look, state  # noqa: E402
from app.views import article, blocks, compare, compiler, gallery, run, schedule, snapshots, softmax, sweep  # noqa: E402

st.set_page_config(page_title="FlashScope", layout="wide")
look.style()
st.logo(look.logo(), size="large")
pages = state.register_pages(
    {
        "run": st.Page(run.page, title="Run", url_path="run", default=True),
        "softmax": st.Page(softmax.page, title="Softmax", url_path="softmax"),
        "schedule": st.Page(schedule.page, title="Schedule", url_path="schedule"),
        "sweep": st.Page(sweep.page, title="Sweep", url_path="sweep"),
        "blocks": st.Page(blocks.page, title="Blocks", url_path="blocks"),
        "compiler": st.Page(compiler.page, title="Compiler", url_path="compiler"),
        "snapshots": st.Page(snapshots.page, title="Snapshots", url_path="snapshots"),
        "compare": st.Page(compare.page, title="Compare", url_path="compare"),
        "article": st.Page(article.page, title="Article", url_path="article"),
        "gallery": st.Page(gallery.page, title="Gallery", url_path="gallery"),
    }
)
current = st.navigation(pages, position="top")
if state.opened_snapshot() is not None and current == state.page("run"):
    state.go_to("snapshots", st.query_params.to_dict())
current.run()
