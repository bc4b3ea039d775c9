"""Numbers and foreign text as people read them. Pure: no Streamlit, no Plotly."""

from __future__ import annotations

import html
import math

from profiling.foreign_text import printable

LEAST_IN_MS = 0.9995  # three digits of it are 1.00
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_MINUS = "\u2212"
_PLOTLY_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"})


def three_digits(value: float) -> str:
    """Three significant digits, thousands separated, a real minus: '1.77', '620', '16,384', '−0.5'."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    decimals = max(0, 2 - math.floor(math.log10(magnitude)))
    if round(magnitude, decimals) >= 10 ** (3 - decimals) and decimals > 0:
        decimals -= 1  # 9.996 has become 10.0
    return (_MINUS if value < 0 else "") + f"{magnitude:,.{decimals}f}"


def milliseconds(value_ms: float) -> str:
    """A duration in the unit that suits it: '8.25 µs', '1.77 ms', '12.1 s', '3.5 min'."""
    if value_ms < LEAST_IN_MS:
        return f"{three_digits(value_ms * 1000)} µs"
    if value_ms < 1000:
        return f"{three_digits(value_ms)} ms"
    return seconds(value_ms / 1000)


def millijoules(value_mj: float) -> str:
    """An energy in the unit that suits it: '0.812 mJ', '938 mJ', '1.24 J'."""
    return f"{three_digits(value_mj)} mJ" if value_mj < 999.5 else f"{three_digits(value_mj / 1000)} J"


def seconds(value_s: float) -> str:
    """A stretch of time: '0.25 s', '12 s', '3.5 min', '2.1 h'."""
    if value_s < 10:
        return f"{value_s:.2g} s"
    if value_s < 120:
        return f"{value_s:.0f} s"
    return f"{value_s / 60:.2g} min" if value_s < 7200 else f"{value_s / 3600:,.3g} h"


def kib(value_bytes: float) -> str:
    """Kibibytes without a fraction where there is none: '227 KiB'."""
    return f"{value_bytes / KIB:,.4g} KiB"


def bytes_(value: float) -> str:
    """Binary units, three significant digits: '65.0 MiB'."""
    for size, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(value) >= size:
            return f"{three_digits(value / size)} {unit}"
    return f"{value:.0f} bytes"


def error(value: float) -> str:
    """A relative error: '2.1e−3'; 0 stays '0'."""
    if value == 0:
        return "0"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}".replace("-", _MINUS)


def times(ratio: float) -> str:
    """A factor: '6.81×'."""
    return f"{three_digits(ratio)}×"


def ratio(value: float) -> str:
    """A factor in whose neighbourhood of 1 a digit more is wanted: '1.003×', '0.978×', '1.25×'."""
    return f"{value:.3f}×" if 0.9 < value < 1.1 else times(value)


def percent(share: float) -> str:
    """A share in as many digits as it deserves, a real minus: '98.6 %', '5.93 %', '0.1 %', '−1.8 %'."""
    value = 100 * abs(share)
    digits = f"{value:.1f}" if value < 1 or 99.95 <= value < 100.05 else three_digits(value)
    return f"{_MINUS if share < 0 and digits != '0.0' else ''}{digits} %"


def signed_percent(share: float) -> str:
    """A change, its sign always told: '+3.2 %', '−0.7 %', '0.0 %'."""
    found = percent(share)
    return f"+{found}" if share > 0 and found != "0.0 %" else found


def tokens(count: int) -> str:
    """A length on an axis: '1k', '16k', '3,000'."""
    return f"{count // 1024:,}k" if count >= 1024 and count % 1024 == 0 else f"{count:,}"


def ordinal(place: int) -> str:
    """'1st', '2nd', '3rd', '11th'."""
    suffix = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{suffix}"


def plotly(text: str) -> str:
    """Foreign text for a figure: Plotly reads a little HTML, and TeX between dollar signs."""
    return printable(text).translate(_PLOTLY_ESCAPES)


def escaped(text: str) -> str:
    """Foreign text for st.html: what was markup becomes letters."""
    return html.escape(printable(text), quote=True)
