"""The Compiler page in a real Chromium: from a result to its code, from the code to the Run page's form, and back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from kernels.architecture import ARCHITECTURES
from kernels.problem import Precision
from kernels.registry import default_backward_tiles
from profiling.records import Measurement
from profiling.snapshot import Snapshot, file_of
from tests import compiled_v2
from tests import records_for_tests as records
from tests.browser.conftest import JOB_PATIENCE_MS, Server, serious_violations, settle, title
from tests.browser.test_snapshots_in_browser import button, open_file

pytestmark = pytest.mark.browser


def measured() -> Snapshot:
    """A result of what is small to compile."""
    request = compiled_v2.QUESTION.request.model_copy(update={"device": records.GPU_ID})
    return snapshot(records.on_gpu("v2", request=request, tiles=request.tiles))


def backward() -> Snapshot:
    """A backward's result of what is small to compile."""
    request = compiled_v2.BACKWARD.request.model_copy(update={"device": records.GPU_ID})
    return snapshot(records.with_backward("v2", "backward", request=request, backward_tiles=request.backward_tiles))


def snapshot(one: Measurement) -> Snapshot:
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
    page.go_back()  # once, and not first to the same form
    expect(title(page)).to_have_text(compiled)
    settle(page)
    page.get_by_role("link", name="Run", exact=True).click()
    expect(page.locator(".st-key-run button")).to_be_visible()
    settle(page)
    page.get_by_role("link", name="Compiler", exact=True).click()
    expect(title(page)).to_have_text(compiled)
    expect(page.get_by_role("combobox", name="BLOCK_N", exact=True)).to_have_value(str(tiles.block_n))


def test_a_backward_leads_to_each_of_its_kernels_and_default_tiles_to_the_form(
    page: Page, server: Server, tmp_path: Path
) -> None:
    open_file(page, server, "backward.flashscope.json.gz", file_of(backward()), tmp_path)
    page.get_by_role("link", name="Its code").click()
    expect(page).to_have_url(re.compile("/compiler.*c_direction=backward.*c_dq_block_m=64"))
    shown = "v2 backward · {} · head_dim 64 · sm_90: "
    dkdv = re.compile(f"^{shown.format('dK, dV · 32 × 64, 4 warps, 2 stages')}")
    expect(title(page)).to_have_text(dkdv, timeout=JOB_PATIENCE_MS)
    settle(page)
    assert serious_violations(page) == []
    expect(button(page, "c_run").first).to_be_disabled()
    page.locator(".st-key-c_part").get_by_role("radio", name="dQ", exact=True).click()
    expect(title(page)).to_have_text(re.compile(f"^{shown.format('dQ · 64 × 64, 4 warps, 2 stages')}"))
    settle(page)
    page.locator(".st-key-c_show").get_by_role("radio", name="SASS", exact=True).click()
    expect(page.get_by_text("flash_v2_backward_dq:", exact=True)).to_be_visible()
    settle(page)
    for part in ("dkdv", "dq"):
        for name in ("block_m", "block_n", "num_warps", "num_stages"):
            box = page.locator(f".st-key-c_{part}_{name}").get_by_role("combobox")
            box.click()
            page.get_by_role("option", name="auto", exact=True).click()
            expect(box).to_have_value("auto")
            settle(page)
    usual = default_backward_tiles("v2", compiled_v2.QUESTION.request.problem, Precision(), ARCHITECTURES[90]).dq.title
    expect(title(page)).to_have_text(re.compile(f"^v2 backward · dQ · {usual}"), timeout=JOB_PATIENCE_MS)
    settle(page)
    button(page, "c_run").click()
    expect(page).to_have_url(re.compile("/\\?.*direction=backward"))
    expect(page.locator(".st-key-direction").get_by_role("radio", name="backward", exact=True)).to_be_checked()
    settle(page)
    page.go_back()
    expect(title(page)).to_have_text(re.compile("^v2 backward · dQ"))
