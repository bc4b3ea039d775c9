"""Numbers as people read them."""

from __future__ import annotations

import pytest

from profiling import words


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (1.774, "1.77"),
        (9.996, "10.0"),
        (99.96, "100"),
        (620.14, "620"),
        (0.0004123, "0.000412"),
        (0.09996, "0.100"),
        (12345.6, "12,346"),
        (-1.5, "\u22121.50"),
        (999.6, "1,000"),
    ],
)
def test_three_significant_digits(value: float, expected: str) -> None:
    assert words.three_digits(value) == expected


def test_three_digits_never_moves_a_value_by_more_than_half_a_unit_of_its_third_digit() -> None:
    for k in range(1, 2000):
        value = 1.0137**k * 1e-6
        shown = float(words.three_digits(value).replace(",", ""))
        assert abs(shown - value) <= 0.5001 * max(10 ** (len(str(int(value))) - 3), 10**-9, value * 1e-2), value


@pytest.mark.parametrize(
    ("value", "expected"),
    [(12, "12 bytes"), (1536, "1.50 KiB"), (65 << 20, "65.0 MiB"), (16 << 30, "16.0 GiB"), (3 << 40, "3.00 TiB")],
)
def test_bytes_are_binary(value: int, expected: str) -> None:
    assert words.bytes_(value) == expected


@pytest.mark.parametrize(
    ("value_ms", "expected"),
    [
        (0.00825, "8.25 µs"),
        (0.9994, "999 µs"),
        (0.9997, "1.00 ms"),
        (1.7714, "1.77 ms"),
        (12100, "12 s"),
        (240000, "4 min"),
        (999.9, "1,000 ms"),
    ],
)
def test_milliseconds_choose_their_unit(value_ms: float, expected: str) -> None:
    assert words.milliseconds(value_ms) == expected


def test_errors_have_a_real_minus() -> None:
    assert words.error(2.1e-3) == "2.1e\u22123"
    assert words.error(0) == "0"


@pytest.mark.parametrize(
    ("share", "plain", "signed"),
    [
        (0.986, "98.6 %", "+98.6 %"), (0.0593, "5.93 %", "+5.93 %"), (0.00149, "0.1 %", "+0.1 %"), (1, "100.0 %", "+100.0 %"),
        (-0.018, "−1.80 %", "−1.80 %"), (-0.0001, "0.0 %", "0.0 %"), (0, "0.0 %", "0.0 %"), (1.5, "150 %", "+150 %"),
    ],
)  # fmt: skip
def test_shares_are_percents_and_changes_have_a_sign(share: float, plain: str, signed: str) -> None:
    assert (words.percent(share), words.signed_percent(share)) == (plain, signed)


def test_ordinals() -> None:
    assert [words.ordinal(place) for place in (1, 2, 3, 4, 11, 12, 13, 21, 112)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "112th",
    ]


def test_foreign_text_loses_its_markup() -> None:
    nasty = '<img src=x onerror="alert(1)"> & $\\href{javascript:alert(1)}{x}$'
    assert not set("<>$") & set(words.plotly(nasty))
    assert not set('<>"') & set(words.escaped(nasty))
