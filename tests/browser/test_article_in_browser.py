"""The Article page in a real Chromium, both themes: the recordings beside the claims, the block sizes, the way to a job."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from app import article_shown
from profiling import article, words
from profiling.article import CLAIMS, Run
from profiling.feasibility import ARTICLE, compiled
from profiling.feasibility_cache import FeasibilityCache
from profiling.snapshot import AnySnapshot, read
from tests import records_for_tests as records
from tests.browser.conftest import ROOT, Server, open_page, serious_violations, settle, title, wait_until

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_claims_and_recordings_stand_side_by_side_and_lead_to_the_job(page: Page, server: Server) -> None:
    keep_compiled(server)
    open_page(page, f"{server.url}/article")
    found = article.judged(Run.of(recorded()))
    expect(title(page)).to_have_text(f"The article’s {len(CLAIMS)} claims, on H200: {article.summary(found)}")
    table = page.get_by_role("region", name="Table: claimed and measured", exact=True)
    last = table.get_by_role("row").last
    expect(last.get_by_role("rowheader", name="v3", exact=True)).to_be_visible()
    expect(last.locator("td.fs-claimed")).to_have_text(["1.77 ms", "25.5×", "168 MB"])
    v3 = Run.of(recorded()).one("v3", 16384)
    expect(last.get_by_role("cell").last).to_have_text(words.bytes_(v3.memory.torch_added_bytes))
    expect(last.get_by_role("cell").nth(4)).to_have_text(words.milliseconds(v3.latency.median_ms))
    claims = page.get_by_role("region", name="Table: the claims", exact=True)
    for claim, judgement in found:
        cells = claims.get_by_role("row").filter(has_text=claim.text).get_by_role("cell")
        expect(cells.first).to_contain_text(judgement.word)
        expect(cells.last).to_have_text(judgement.why)
    chart = page.locator(".st-key-article_chart")
    expect(chart.locator(".scatterlayer .points path")).to_have_count(16)
    blocks = page.get_by_role("region", name="Table: block sizes, compiled", exact=True)
    expect(blocks.get_by_role("row").filter(has_text="32 × 512")).to_contain_text("spills 64 bytes a thread at least")
    settle(page)
    assert serious_violations(page) == []
    for width in (1280, 1920):
        page.set_viewport_size({"width": width, "height": 1600})
        settle(page)
        wait_until(page, "document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.get_by_role("link", name="Open 16k", exact=False).click()
    expect(title(page)).to_have_text("article · 16,384 tokens · head_dim 32")


def recorded() -> list[AnySnapshot]:
    """The run of the suite in the gallery."""
    return [read(path.read_bytes()) for path in (ROOT / "app" / "gallery").glob("2[1-4]-article-*.json")]


def keep_compiled(server: Server) -> None:
    """All settings as if they had been compiled, so that nothing is."""
    for capability in (article_shown.ARTICLE_CAPABILITY, 90):
        for advice in ARTICLE:
            grid = article_shown.pair_grid(advice, capability)
            for place in grid.places:
                report = records.report(capability, spill_bytes=64 if advice.block_n == 512 else 0)
                FeasibilityCache(grid, server.feasibility).put(compiled(grid, place, report))
