"""The Article page's tables: what is claimed beside what was measured, the claims, the block sizes as compiled. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.table_html import title_of as explained_by
from kernels.problem import AttentionProblem
from profiling import words
from profiling.article import GPU, LENGTHS, TABLE, Claim, Claimed, Judgement, Run
from profiling.feasibility import ARTICLE, Advice, Cell, Grid, Place
from profiling.records import Measurement
from profiling.suite_table import why_not
from profiling.suites import PAIR_WARPS
from profiling.words import escaped

ARTICLE_CAPABILITY = 89
_ICONS = {"holds": "check_circle", "does not hold": "cancel", "not measured": "radio_button_unchecked"}
_CLASSES = {"holds": "holds", "does not hold": "fails", "not measured": "missing"}
_STAGES = (2, 3)
_LONGEST_OF = {(128, 128): 512, (64, 256): 4096, (32, 512): 16384}
_MEMORY_CLAIMED = "The article has one number for each version, and does not say at which length."
_MEMORY_MEASURED = "What one launch adds to its inputs, as torch counts it."


def device_words(run: Run) -> str:
    """'H200', as the heading of what was measured; several are told."""
    names = [name.removeprefix("NVIDIA ").removeprefix("GeForce ") for name in run.devices]
    return " and ".join(names)


# Claimed beside measured


def table_html(run: Run) -> str:
    """The article's table with what was measured beside it, a row a version and length."""
    where = f" on {device_words(run)}" if run.devices else ""
    heads = (
        '<tr><th rowspan="2" scope="col">seq_len</th><th rowspan="2" scope="col">version</th>'
        f'<th colspan="3" scope="colgroup" class="fs-claimed"><span class="fs-ring" aria-hidden="true"></span>claimed, '
        f'{GPU}</th><th colspan="3" scope="colgroup"><span class="fs-dot" aria-hidden="true"></span>'
        f"measured{escaped(where)}</th></tr>"
    )
    memory = {"memory": _MEMORY_CLAIMED, "adds": _MEMORY_MEASURED}
    columns = [("time", "fs-claimed"), ("vs native", "fs-claimed"), ("memory", "fs-claimed"), ("time", ""),
               ("vs native", ""), ("adds", "")]  # fmt: skip
    second = "".join(f'<th scope="col" class="{kind}"{explained_by(name, memory)}>{name}</th>' for name, kind in columns)
    body = "".join(_row(run, one, length) for length in LENGTHS for one in TABLE)
    return (
        '<div class="fs-article" tabindex="0" role="region" aria-label="Table: claimed and measured"><table><thead>'
        f"{heads}<tr>{second}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(run: Run, one: Claimed, length: int) -> str:
    claimed = [
        claimed_ms(one, length),
        words.times(TABLE[0].ms[length] / one.ms[length]),
        f"{one.memory_mb:,} MB" if length == LENGTHS[-1] else "",
    ]
    cells = [f"<td>{words.tokens(length)}</td>", f'<th scope="row">{one.version}</th>']
    cells += [f'<td class="fs-claimed">{escaped(cell)}</td>' for cell in claimed]
    return f"<tr>{''.join([*cells, *_measured(run, one.version, length)])}</tr>"


def claimed_ms(one: Claimed, length: int) -> str:
    """A time of the article's, with the digits that it has there."""
    return f"{one.ms[length]:.2f} ms"


def _measured(run: Run, version: str, length: int) -> list[str]:
    found = run.one(version, length)
    if found is None:
        return ['<td class="fs-missing" colspan="3">not measured</td>']
    ms, native_ms = run.ms(version, length), run.ms("native", length)
    if ms is None:
        is_wrong = found.accuracy is not None and not found.accuracy.passed
        word, reason = ("WRONG" if is_wrong else "no time"), {"why": why_not(found) or ""}
        return [f'<td class="fs-fails" colspan="3"{explained_by("why", reason)}>{word}</td>']
    ratio = words.times(native_ms / ms) if native_ms is not None else "–"
    return [f"<td>{escaped(cell)}</td>" for cell in (words.milliseconds(ms), ratio, _added(found))]


def _added(found: Measurement) -> str:
    added = None if found.memory is None else found.memory.torch_added_bytes
    return "–" if added is None else words.bytes_(added)


# The claims


def claims_html(found: Sequence[tuple[Claim, Judgement]]) -> str:
    """Every claim with its word, and why in one line."""
    rows, about = [], ""
    for claim, judgement in found:
        if claim.about != about:
            about = claim.about
            rows.append(f'<tr class="fs-group"><th colspan="3" scope="rowgroup">{escaped(about)}</th></tr>')
        icon, kind = _ICONS[judgement.word], _CLASSES[judgement.word]
        decided = explained_by("by", {"by": f"Decided by: {claim.decided_by}."})
        rows.append(
            f'<tr><td class="fs-{kind}"><span class="fs-icon" aria-hidden="true">{icon}</span>{judgement.word}</td>'
            f"<td{decided}>{escaped(claim.text)}</td><td>{escaped(judgement.why)}</td></tr>"
        )
    return (
        '<div class="fs-article fs-claims" tabindex="0" role="region" aria-label="Table: the claims"><table><thead><tr>'
        '<th scope="col">here</th><th scope="col" class="fs-claimed"><span class="fs-ring" aria-hidden="true"></span>'
        'claimed</th><th scope="col"><span class="fs-dot" aria-hidden="true"></span>measured, and why</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


# The block sizes, compiled


def pair_grid(advice: Advice, capability: int) -> Grid:
    """v2 with a pair of the article's for a GPU, on its problem, with 4 and 8 warps and 2 and 3 stages."""
    length = _LONGEST_OF[advice.block_m, advice.block_n]
    problem = AttentionProblem(seq_len_q=length, seq_len_kv=length, head_dim=32)
    return Grid(
        kernel="v2", problem=problem, capability=capability, block_m=(advice.block_m,), block_n=(advice.block_n,),
        num_warps=PAIR_WARPS, num_stages=_STAGES,
    )  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a pair on a GPU: one word, and a sentence."""

    word: str
    sentence: str


def compiled_pair(grid: Grid, cells: Mapping[Place, Cell]) -> Compiled:
    """The best that a pair comes to, of the warps and stages that were compiled."""
    found, count = list(cells.values()), len(grid.places)
    if len(found) < count:
        return Compiled("not compiled", f"{len(found)} of {count} settings are known here." if found else "")
    fits = [one for one in found if one.reason == "fits"]
    if fits:
        best = max(fits, key=lambda one: (one.report.programs_per_sm, -one.report.registers_per_thread))
        return Compiled("fits", f"with {len(fits)} of {count} settings; {_setting(best)}: {best.sentence}")
    spills = [one for one in found if one.reason == "spills"]
    if spills:
        best = min(spills, key=lambda one: one.report.spill_bytes)
        others = [one for one in found if one.reason != "spills"]
        also = f" With {_setting(others[0])}: {others[0].sentence}" if others else ""
        spilt = f"{best.report.spill_bytes:,} bytes a thread at least ({_setting(best)}), which go through memory."
        return Compiled("spills", spilt + also)
    return Compiled("cannot run", found[0].sentence)


def _setting(one: Cell) -> str:
    return f"{one.num_warps} warps, {one.num_stages} stages"


def pairs_html(found: Mapping[str, Sequence[Compiled]]) -> str:
    """The three pairs by GPU: found has for each GPU's name what became of each pair."""
    heads = "".join(f'<th scope="col">{escaped(name)}</th>' for name in found)
    rows = []
    for place, advice in enumerate(ARTICLE):
        cells = "".join(_pair_cell(judged[place]) for judged in found.values())
        rows.append(f'<tr><th scope="row">{advice.title}<br><span class="fs-count">{advice.lengths}</span></th>{cells}</tr>')
    return (
        '<div class="fs-article fs-pairs" tabindex="0" role="region" aria-label="Table: block sizes, compiled"><table><thead>'
        f'<tr><th scope="col">BLOCK_M × BLOCK_N</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


_PAIR_CLASSES = {"fits": "holds", "spills": "fails", "cannot run": "fails", "not compiled": "missing"}


def _pair_cell(found: Compiled) -> str:
    return f'<td><span class="fs-{_PAIR_CLASSES[found.word]}">{found.word}</span> {escaped(found.sentence)}</td>'
