"""The Article page in a real Chromium, both themes: the recordings beside the claims, the block sizes, the way to a job."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from app import article_shown
from profiling.feasibility import ARTICLE, compiled
from profiling.feasibility_cache import FeasibilityCache
from tests import records_for_tests as records
from tests.browser.conftest import Server, open_page, serious_violations, settle, title, wait_until

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_claims_and_recordings_stand_side_by_side_and_lead_to_the_job(page: Page, server: Server) -> None:
    keep_compiled(server)
    open_page(page, f"{server.url}/article")
    expect(title(page)).to_contain_text("The article’s 17 claims, on H200: ")
    table = page.get_by_role("region", name="Table: claimed and measured", exact=True)
    last = table.get_by_role("row").last
    expect(last.get_by_role("rowheader", name="v3", exact=True)).to_be_visible()
    expect(last.locator("td.fs-claimed")).to_have_text(["1.77 ms", "25.5×", "168 MB"])
    expect(last.get_by_role("cell").last).to_have_text("17.0 MiB")
    claims = page.get_by_role("region", name="Table: the claims", exact=True)
    row = claims.get_by_role("row").filter(has_text="v3 is 25.5× as fast as native at 16,384 tokens")
    expect(row).to_contain_text("does not hold")
    expect(claims.get_by_role("row").filter(has_text="FP8 needs 75 % less bandwidth")).to_contain_text("not measured")
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
    expect(title(page)).to_have_text("The article's problem: 16,384 tokens, d_model 512")


def keep_compiled(server: Server) -> None:
    """All settings as if they had been compiled, so that nothing is."""
    for capability in (article_shown.ARTICLE_CAPABILITY, 90):
        for advice in ARTICLE:
            grid = article_shown.pair_grid(advice, capability)
            for place in grid.places:
                report = records.report(capability, spill_bytes=64 if advice.block_n == 512 else 0)
                FeasibilityCache(grid, server.feasibility).put(compiled(grid, place, report))
