"""Rounding and quantisation in the interpreter, where Triton's own casts are wrong, against torch's, bit for bit."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def found() -> dict:
    child = subprocess.run(
        [sys.executable, "-m", "tests.interpreted_rounding"], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@pytest.mark.parametrize("name", ["e4m3", "bf16", "fp16"])
def test_rounds_as_torch_does(found, name):
    assert found["differing"]["values"] > 400_000
    assert found["differing"][name] == 0


@pytest.mark.parametrize("case", range(5))
def test_quantised_values_are_the_nearest_e4m3(found, case):
    errors = found["quantised"][case]
    assert errors["q"] <= 1.0001
    assert errors["v"] <= 1.0001
    # K has lost its mean to float32's last digits, so its values are compared as a whole: half a unit at most is 2^-4 / √3.
    # So are those of Q turned back, where they have been turned; K is rounded to bf16 before.
    assert errors["k"] <= 2.0**-4 / 3**0.5 + 2.0**-9
    assert errors["q back"] <= 2.0**-4 / 3**0.5
    # Turned, a number is a float32 sum of 128.
    assert errors["q amax in scale"] < 1e-5
    assert errors["v past the end"] == 0.0
    assert errors["stored"] % 16 == 0


def test_what_smoothing_takes_off_the_scores_is_kept(found):
    # float32 sums of at most 64 products of about 3 and 3.
    assert all(errors["shift"] < 64 * 9 * 2.0**-23 for errors in found["quantised"] if "shift" in errors)
