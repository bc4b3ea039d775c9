"""The Compiler page in a real Chromium: from a result to its code, from the code to the Run page's form, and back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from profiling.snapshot import Snapshot, file_of
from tests import compiled_v2
from tests import records_for_tests as records
from tests.browser.conftest import JOB_PATIENCE_MS, Server, serious_violations, settle, title
from tests.browser.test_snapshots_in_browser import button, open_file

pytestmark = pytest.mark.browser


def measured() -> Snapshot:
    """A result of what is small to compile."""
    request = compiled_v2.QUESTION.request.model_copy(update={"device": records.GPU_ID})
    one = records.on_gpu("v2", request=request, tiles=request.tiles)
    return Snapshot(title="Small tiles", created_at="2026-11-29T13:10:00+00:00", measurements=(one,))


def test_a_result_leads_to_its_code_and_its_code_to_the_form(page: Page, server: Server, tmp_path: Path) -> None:
    tiles = compiled_v2.QUESTION.request.tiles
    open_file(page, server, "small.flashscope.json.gz", file_of(measured()), tmp_path)
    page.get_by_role("link", name="Its code").click()
    expect(page).to_have_url(re.compile("/compiler.*c_head_dim=64"))
    compiled = re.compile(f"^v2 · {tiles.block_m} × {tiles.block_n}.* · head_dim 64 · sm_90: .* no spills")
    expect(title(page)).to_have_text(compiled, timeout=JOB_PATIENCE_MS)
    assert serious_violations(page) == []
    button(page, "c_run").click()
    expect(page).to_have_url(re.compile(f"block_n={tiles.block_n}"))
    for name, value in (("BLOCK_M", tiles.block_m), ("BLOCK_N", tiles.block_n), ("Stages", tiles.num_stages), ("head_dim", 64)):
        expect(page.get_by_role("combobox", name=name, exact=True)).to_have_value(str(value))
    expect(page.get_by_role("switch", name="Causal")).not_to_be_checked()
    settle(page)
    page.get_by_role("link", name="Compiler", exact=True).click()
    expect(title(page)).to_have_text(compiled)
    expect(page.get_by_role("combobox", name="BLOCK_N", exact=True)).to_have_value(str(tiles.block_n))
