"""A training step on the Run page, on a machine with no GPU: chosen with a click, run, proved, and split into its parts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import JOB_PATIENCE_MS, Server, fresh, open_page, serious_violations, settle, title

pytestmark = pytest.mark.browser


def test_a_step_is_chosen_run_proved_and_split(page: Page, server: Server) -> None:
    open_page(page, f"{server.url}/?kernel=v2&seq_len=64")
    expect(page.locator(".st-key-run button")).to_be_enabled()
    settle(page)
    page.locator(".st-key-direction").get_by_role("radio", name="both", exact=True).click()
    expect(page).to_have_url(re.compile("direction=both"))
    expect(
        page.get_by_text("A training step's attention: the forward, then its backward; and each of its parts.")
    ).to_be_visible()
    settle(page)
    page.locator(".st-key-run button").click()
    expect(fresh(page, ".fs-metrics")).to_be_visible(timeout=JOB_PATIENCE_MS)
    settle(page)
    expect(title(page)).to_contain_text("FlashAttention v2 · forward + backward · 64 tokens")
    expect(page.locator(".fs-value").nth(1)).to_have_text(re.compile("correct"))
    expect(page.get_by_text("Where a step's time goes", exact=True)).to_be_visible()
    expect(page.get_by_text("Memory of a training step over seq_len", exact=True)).to_be_visible()
    assert serious_violations(page) == []
