"""A sweep as a file: the cells as CSV, the whole as JSON, the best as Python. Pure but for this machine's names, left out."""

from __future__ import annotations

import csv
import gzip
import io
import json

from profiling.privacy import plain
from profiling.samples_csv import harmless
from profiling.sweep_ranking import rankings
from profiling.sweep_record import CellOutcome, Ranking, RankRow, Sweep, SweepCell, snippet

Value = str | int | float | bool | None


def rows_of(sweep: Sweep) -> list[dict[str, Value]]:
    """Every cell as a row of a table, series by series, best first: numbers as numbers, None where there is none."""
    ranks = {row.key: row for ranking in rankings(sweep) for row in ranking.rows}
    pairs = sorted(
        enumerate(zip(sweep.cells, sweep.outcomes, strict=True)),
        key=lambda one: (sweep.plan.series.index(one[1][0].series), *_order(ranks.get(one[1][0].key)), one[0]),
    )
    return [_row(cell, outcome, ranks.get(cell.key)) for _, (cell, outcome) in pairs]


def _order(rank: RankRow | None) -> tuple[bool, int, float]:
    return rank is None, 0 if rank is None else rank.rank, 0.0 if rank is None else rank.behind_best


def _row(cell: SweepCell, outcome: CellOutcome, rank: RankRow | None) -> dict[str, Value]:
    request, tiles, known = cell.request, cell.tiles, outcome.best_known
    report, accuracy = outcome.report, None if known is None else known.accuracy
    return {
        "kernel": request.kernel,
        "batch": request.problem.batch,
        "num_heads": request.problem.num_heads,
        "num_kv_heads": request.problem.num_kv_heads,
        "seq_len_q": request.problem.seq_len_q,
        "seq_len_kv": request.problem.seq_len_kv,
        "head_dim": request.problem.head_dim,
        "causal": request.problem.causal,
        "precision": request.precision.title,
        "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n,
        "warps": tiles.num_warps,
        "stages": tiles.num_stages,
        "block_order": tiles.block_order,
        "roles": " ".join(cell.roles),
        "rank": None if rank is None else rank.rank,
        "result": outcome.status,
        "provenance": outcome.provenance,
        "median_ms": outcome.median_ms,
        "screening_median_ms": None if not _timed(outcome) else outcome.measurement.latency.median_ms,
        "final_median_ms": None if outcome.final is None or outcome.final.latency is None else outcome.median_ms,
        "low_ms": None if rank is None else rank.low_ms,
        "high_ms": None if rank is None else rank.high_ms,
        "behind_best": None if rank is None else rank.behind_best,
        "tflops": None if known is None else known.tflops,
        "relative_error": None if accuracy is None else accuracy.relative_error,
        "allowed_relative_error": None if accuracy is None else accuracy.allowed_relative_error,
        "reason": outcome.reason,
        "registers_per_thread": None if report is None else report.registers_per_thread,
        "spill_bytes": None if report is None else report.spill_bytes,
        "shared_memory_bytes": outcome.needs_bytes if report is None else report.shared_memory_bytes,
        "programs_per_sm": None if report is None else report.programs_per_sm,
        "device": None if known is None else known.environment.device.id,
        "why": outcome.sentence,
    }


def _timed(outcome: CellOutcome) -> bool:
    return outcome.measurement is not None and outcome.measurement.latency is not None


def csv_of(sweep: Sweep) -> bytes:
    """The cells as a CSV file: UTF-8 with the mark by which spreadsheets know it, no cell a formula to one.

    Names of this machine and its users, and of folders, are left out of it as of json_of.
    """
    rows, text = plain(rows_of(sweep)), io.StringIO(newline="")
    table = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows({name: harmless(one) if isinstance(one, str) else one for name, one in row.items()} for row in rows)
    return text.getvalue().encode("utf-8-sig")


def json_of(sweep: Sweep) -> bytes:
    """The whole sweep, every sample with it, and its rankings with the best tiles as Python; not who started it."""
    found = [{**one.model_dump(mode="json"), "snippet": _snippet(sweep, one)} for one in rankings(sweep)]
    document = plain({"sweep": sweep.model_dump(mode="json"), "rankings": found})
    document["sweep"]["owner"] = ""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def gzip_of(sweep: Sweep) -> bytes:
    """json_of, compressed; the same bytes every time."""
    return gzip.compress(json_of(sweep), mtime=0)


def _snippet(sweep: Sweep, ranking: Ranking) -> str | None:
    return None if ranking.best is None else snippet(sweep.by_key[ranking.best.key][0].tiles)
