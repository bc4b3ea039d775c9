"""The app's entry: page configuration and the list of pages."""

import sys
from pathlib import Path

import streamlit as st

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)  # `streamlit run app/main.py` puts app/ on the path, not what holds it

from app import look, state  # noqa: E402
from app.views import gallery, run  # noqa: E402

st.set_page_config(page_title="FlashScope", layout="wide")
look.style()
st.logo(look.logo(), size="large")
pages = state.register_pages(
    {
        "run": st.Page(run.page, title="Run", url_path="run", default=True),
        "gallery": st.Page(gallery.page, title="Gallery", url_path="gallery"),
    }
)
st.navigation(pages, position="top").run()
