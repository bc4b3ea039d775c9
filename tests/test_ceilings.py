"""Measured ceilings: kept by device, versions and age; measured again when one differs; not kept when the GPU was shared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from profiling import ceilings
from profiling.ceilings import METHOD, Ceilings, ceilings_of, keep, kept, kept_file

torch = pytest.importorskip("torch")

UUID, DRIVER = "GPU-487a0000-0000-0000-0000-000000000000", "580.159.03"
NOW = datetime(2026, 11, 30, 10, tzinfo=UTC)


def found(**changes: object) -> Ceilings:
    fields = {
        "uuid": UUID, "method": METHOD, "driver_version": DRIVER, "torch_version": "2.13.0",
        "ceilings_measured_at": NOW.isoformat(timespec="seconds"), "measured_bf16_tflops": 790.0,
    }  # fmt: skip
    return Ceilings(**fields | changes)


class Gpu:
    """NVML's readings, and how often the device was measured."""

    def __init__(self, others: int | None = 0, busy: int | None = 0, driver: str | None = DRIVER) -> None:
        self.others, self.busy, self.driver, self.measured = others, busy, driver, 0

    def driver_version(self) -> str | None:
        return self.driver

    def other_processes(self) -> int | None:
        return self.others

    def utilisation_percent(self) -> int | None:
        return self.busy


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    one = Gpu()

    def measured(_device):
        one.measured += 1
        return {"measured_bf16_tflops": 780.0 + one.measured}, {"measured_fp8_tflops": "its matrix units have no FP8"}

    monkeypatch.setattr(ceilings, "_measured", measured)
    return one


def test_what_was_kept_is_read_and_not_measured(gpu, tmp_path):
    device = torch.device("cpu")
    first = ceilings_of(device, UUID, gpu, tmp_path)
    assert first.facts["measured_bf16_tflops"] == 781.0
    assert first.facts["measured_fp8_tflops"] is None
    assert "FP8" in first.missing["measured_fp8_tflops"]
    assert ceilings_of(device, UUID, gpu, tmp_path) == first
    assert gpu.measured == 1
    assert ceilings_of(device, UUID, gpu, tmp_path, anew=True).measured_bf16_tflops == 782.0
    assert ceilings_of(device, UUID, gpu, tmp_path).measured_bf16_tflops == 782.0


@pytest.mark.parametrize("shared", [{"others": 1}, {"busy": 40}, {"others": None, "busy": 12}])
def test_what_was_measured_beside_others_is_used_but_not_kept(gpu, tmp_path, shared):
    for name, value in shared.items():
        setattr(gpu, name, value)
    assert ceilings_of(torch.device("cpu"), UUID, gpu, tmp_path).measured_bf16_tflops == 781.0
    assert not list(tmp_path.iterdir())
    ceilings_of(torch.device("cpu"), UUID, gpu, tmp_path)
    assert gpu.measured == 2


def test_too_little_memory_is_not_kept(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(ceilings, "_measured", lambda _: ({}, {"measured_bf16_tflops": ceilings._NO_MEMORY}))
    ceilings_of(torch.device("cpu"), UUID, gpu, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"ceilings_measured_at": (NOW - timedelta(days=29)).isoformat()}, True),
        ({"ceilings_measured_at": (NOW - timedelta(days=31)).isoformat()}, False),
        ({"ceilings_measured_at": (NOW + timedelta(hours=1)).isoformat()}, False),
        ({"driver_version": "590.1"}, False),
        ({"torch_version": "2.14.0"}, False),
        ({"uuid": "GPU-other"}, False),
        ({"method": METHOD + 1}, False),
    ],
)
def test_ceilings_hold_for_their_device_versions_and_thirty_days(tmp_path, change, holds):
    file = kept_file(UUID, tmp_path / "cache")
    keep(file, found(**change))
    assert (kept(file, UUID, DRIVER, "2.13.0", NOW) is not None) == holds


def test_a_broken_or_absent_file_is_as_none(tmp_path):
    file = kept_file(UUID, tmp_path)
    assert kept(file, UUID, DRIVER, "2.13.0", NOW) is None
    for text in ("", "{", '{"uuid": "x"}', found().model_dump_json().replace("790.0", "1e400")):
        file.write_text(text)
        assert kept(file, UUID, DRIVER, "2.13.0", NOW) is None


def test_a_folder_that_cannot_be_written_to_costs_only_time(tmp_path):
    (tmp_path / "file").write_text("")
    keep(kept_file(UUID, tmp_path / "file"), found())


def test_a_uuid_cannot_lead_out_of_the_folder(tmp_path):
    assert kept_file("../../MIG-1/2", tmp_path).parent == tmp_path


def test_a_ceiling_that_fails_leaves_the_others(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(ceilings, "_bf16_tflops", lambda _: 790.0)
    monkeypatch.setattr(ceilings, "_fp8_tflops", lambda _: 1 / 0)
    monkeypatch.setattr(ceilings, "_copied_bytes_per_s", lambda _: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError("full")))
    monkeypatch.setattr(ceilings, "_l2_bytes_per_s", lambda _: 7e12)
    rates, missing = ceilings._measured(torch.device("cpu"))
    assert rates == {"measured_bf16_tflops": 790.0, "measured_l2_bytes_per_s": 7e12}
    assert missing["measured_fp8_tflops"] == "it could not be measured here (division by zero)"
    assert missing["measured_bandwidth_bytes_per_s"] == ceilings._NO_MEMORY
