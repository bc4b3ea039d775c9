"""The article that started FlashScope: what it claims, and what a run of the suite `article` says to each claim. Pure.

No claim is judged without the measurements that decide it, all of one job. A claim of a gain holds where the gain is at least
the lower number claimed. The article's own times are of an RTX 4090: across GPUs only ratios within one job are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kernels.problem import listed
from profiling import words
from profiling.feasibility import ARTICLE as ADVICE
from profiling.feasibility import Advice
from profiling.records import Measurement
from profiling.snapshot import AnySnapshot
from profiling.suite_table import Row, SuiteTable, suite_table, why_not
from profiling.suites import V3_FORMS, Suite, of_pair, suite, title_of
from profiling.verdict import LEAST_EFFECT

SUITE = "article"
GPU = "RTX 4090"
LENGTHS = (1024, 16384)
Word = Literal["holds", "does not hold", "not measured"]
WORDS: tuple[Word, ...] = get_args(Word)

FACTS = (
    "Its v1 is right without a mask and wrong with one: the causal test adds the tile's offset twice.",
    "Its v2 is wrong in 16 of 16 heads: it steps through head_dim with the stride of a head.",
    "Its v3 is wrong in 16 of 16 heads, and launches no head axis: it does a sixteenth of the work, and that is its speed.",
    "Its FP8 path does not compile.",
)
FACTS_HOW = (
    "The article’s published code, run on an H200 against float32 and float64 references: 1,024 and 16,384 tokens, 16 heads, "
    "head_dim 32. It is no part of FlashScope and of none of the numbers here."
)


@dataclass(frozen=True)
class Claimed:
    """A row of the article's table: times by seq_len, and its one number for memory, of which it gives no length."""

    version: str
    ms: dict[int, float]
    memory_mb: int


TABLE = (
    Claimed("native", {1024: 0.50, 16384: 45.21}, 2468),
    Claimed("v1", {1024: 0.07, 16384: 13.98}, 184),
    Claimed("v2", {1024: 0.06, 16384: 13.73}, 168),
    Claimed("v3", {1024: 0.05, 16384: 1.77}, 168),
)


@dataclass(frozen=True)
class Judgement:
    """One word and, in one line with the measured numbers in it, why."""

    word: Word
    why: str


@dataclass(frozen=True)
class Run:
    """What was measured of the suite: at most one job a length."""

    table: SuiteTable

    @staticmethod
    def of(snapshots: Iterable[AnySnapshot]) -> Run:
        """The run that these snapshots are; of a length that several hold the newest counts."""
        return Run(suite_table(the_suite(), tuple(snapshots)))

    def row(self, length: int) -> Row | None:
        """The job of a length."""
        return next((row for row in self.table.rows if row.cell.problem.seq_len_q == length), None)

    def one(self, name: str, length: int) -> Measurement | None:
        """What was measured of a version at a length, right or wrong."""
        row = self.row(length)
        return None if row is None else row.measurements.get(name)

    def ms(self, name: str, length: int) -> float | None:
        """The median of a version whose output was right, on a GPU."""
        found = self.one(name, length)
        return None if found is None or found.tflops is None else found.latency.median_ms

    def fastest(self, names: Iterable[str], length: int) -> str | None:
        """The fastest of some versions; None where none has a time."""
        timed = [name for name in names if self.ms(name, length) is not None]
        return min(timed, key=lambda name: self.ms(name, length), default=None)

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the GPUs it ran on."""
        names = (one.environment.device.name for row in self.table.rows for one in row.measurements.values())
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Claim:
    """What the article says, in our words with its numbers; which measurement decides it; and the judge of a run."""

    about: str
    text: str
    decided_by: str
    judge: Callable[[Run], Judgement]


def the_suite() -> Suite:
    """The suite that the claims are judged by."""
    return suite(SUITE)


def judged(run: Run) -> tuple[tuple[Claim, Judgement], ...]:
    """Every claim with what the run says to it."""
    return tuple((claim, claim.judge(run)) for claim in CLAIMS)


def summary(found: Sequence[tuple[Claim, Judgement]]) -> str:
    """'3 hold, 8 do not, 7 are not measured'; what is none of them is left out."""
    counts = {word: sum(one.word == word for _, one in found) for word in WORDS}
    holds, fails, missing = (counts[word] for word in WORDS)
    if missing == len(found):
        return f"none of {missing} is measured yet"
    parts = [
        f"{holds} hold{'s' * (holds == 1)}" if holds else "",
        f"{fails} do{'es' * (fails == 1)} not" if fails else "",
        f"{missing} {'is' if missing == 1 else 'are'} not measured" if missing else "",
    ]
    return ", ".join(filter(None, parts))


def text(run: Run) -> str:
    """The claims and what the run says to each, for a terminal."""
    found = judged(run)
    lines = [f"What the article claims: {summary(found)}."]
    for claim, judgement in found:
        lines += [f"{judgement.word:<{max(map(len, WORDS))}}  {claim.text}", f"{'':<{max(map(len, WORDS))}}  {judgement.why}"]
    return "\n".join(lines)


def as_json(run: Run) -> list[dict[str, str]]:
    """The same as plain values."""
    return [
        {"claim": claim.text, "decided_by": claim.decided_by, "word": one.word, "why": one.why} for claim, one in judged(run)
    ]


# Judges


def _not_measured(run: Run, names: Sequence[str], length: int) -> Judgement:
    """Why there is no verdict: what failed, or what has to run."""
    for name in names:
        found = run.one(name, length)
        if found is not None and (reason := why_not(found)) is not None:
            return Judgement("not measured", f"{title_of(name)} at {length:,} tokens has no time: {reason}")
    what = listed(tuple(map(title_of, names))).replace(" or ", " and ") if len(names) > 1 else title_of(names[0])
    return Judgement("not measured", f"It takes {what} at {length:,} tokens in one job{_command(length)}.")


def _command(length: int) -> str:
    """Which run of the suite takes it, to stand before the full stop."""
    return f": python -m profiling bench {SUITE} --only {words.tokens(length)} --save"


def _gain(ratio: float, least: float, claimed: str, numbers: str, most: float | None = None) -> Judgement:
    """A gain of so many times against the least that was claimed; most: from where on it is more than claimed."""
    if ratio < least:
        return Judgement("does not hold", f"{numbers}: {words.times(ratio)}, not {claimed}.")
    more = f", more than the {claimed} claimed" if ratio > (most or 1.05 * least) else ""
    return Judgement("holds", f"{numbers}: {words.times(ratio)}{more}.")


def _faster(
    slower: str, faster: Sequence[str], length: int, claimed: str, least: float, most: float | None = None
) -> Callable[[Run], Judgement]:
    """Judge how many times faster one version, or the fastest of several, is than another in the same job."""

    def judge(run: Run) -> Judgement:
        slow_ms, best = run.ms(slower, length), run.fastest(faster, length)
        if slow_ms is None or best is None:
            return _not_measured(run, (slower, faster[0]), length)
        best_ms = run.ms(best, length)
        numbers = f"{title_of(slower)} {words.milliseconds(slow_ms)}, {title_of(best)} {words.milliseconds(best_ms)}"
        return _gain(slow_ms / best_ms, least, claimed, numbers, most)

    return judge


def _saves_memory(run: Run) -> Judgement:
    added = [_added_bytes(run.one(name, 4096)) for name in ("native", "v1")]
    if None in added or not added[1]:
        return _not_measured(run, ("native", "v1"), 4096)
    numbers = f"A launch of native adds {words.bytes_(added[0])} to its inputs, one of v1 {words.bytes_(added[1])}"
    return _gain(added[0] / added[1], 5, "5 to 10×", numbers, 10)


def _added_bytes(found: Measurement | None) -> int | None:
    """What a launch whose output was right allocated, as torch counted it."""
    if found is None or found.memory is None or found.accuracy is None or not found.accuracy.passed:
        return None
    return found.memory.torch_added_bytes


def _only_choice(run: Run) -> Judgement:
    length = LENGTHS[-1]
    best = run.fastest(V3_FORMS, length)
    other = run.fastest(("native", "v1", "v2"), length)
    if best is None or other is None:
        return _not_measured(run, ("v2", "v3"), length)
    other_ms, best_ms = run.ms(other, length), run.ms(best, length)
    forms = listed(tuple(title_of(name) for name in V3_FORMS if run.ms(name, length) is not None)).replace(" or ", " and ")
    takes = f"takes {words.milliseconds(other_ms)}, {title_of(best)} {words.milliseconds(best_ms)} (the fastest of {forms})"
    if other_ms < 2 * best_ms:
        return Judgement("does not hold", f"{title_of(other)} is right too and {takes}: {words.times(other_ms / best_ms)}.")
    return Judgement("holds", f"{title_of(other)}, the fastest other, {takes}: {words.times(other_ms / best_ms)}.")


def _storage(run: Run) -> Judgement:
    found = run.one("v3@fp8=yes", LENGTHS[-1])
    memory = None if found is None or found.accuracy is None or not found.accuracy.passed else found.memory
    stored = None if memory is None else memory.operands_bytes
    if stored is None:
        return _not_measured(run, ("v3@fp8=yes",), LENGTHS[-1])
    in_16_bits, in_fp32 = memory.inputs_bytes, 2 * memory.inputs_bytes
    saved, against_16 = 1 - stored / in_fp32, 1 - stored / in_16_bits
    why = (
        f"Q, K and V take {words.bytes_(stored)} in FP8 with their scales, {words.percent(saved)} less than FP32’s "
        f"{words.bytes_(in_fp32)}, {words.percent(against_16)} less than the {words.bytes_(memory.inputs_bytes)} in "
        f"{found.request.precision.dtype} that they replace."
    )
    return Judgement("holds" if saved >= 0.75 else "does not hold", why)


def _undecided(why: str) -> Callable[[Run], Judgement]:
    return lambda run: Judgement("not measured", why)


def _pair(advice: Advice, lengths: Sequence[int]) -> Callable[[Run], Judgement]:
    """Judge a recommended pair: nothing else that v2 ran with in the same job was faster by more than 1 %."""

    def judge(run: Run) -> Judgement:
        found = [_pair_at(run, advice, length) for length in lengths]
        for word in ("does not hold", "not measured"):
            if (first := next((one for one in found if one.word == word), None)) is not None:
                return first
        return Judgement("holds", " ".join(one.why for one in found))

    return judge


def _pair_at(run: Run, advice: Advice, length: int) -> Judgement:
    names = of_pair(advice.block_m, advice.block_n)
    row = run.row(length)
    here = {name: one for name, one in ({} if row is None else row.measurements).items() if one.request.kernel == "v2"}
    ours, others = run.fastest(names, length), run.fastest([name for name in here if name not in names], length)
    if others is None or not all(name in here for name in names):
        return Judgement("not measured", f"It takes v2 with these and with other tiles at {length:,} tokens{_command(length)}.")
    if ours is None:
        errors = [here[name].error for name in names]
        cannot = all(error is not None and error.kind in ("refused", "compile", "out_of_memory") for error in errors)
        return Judgement("does not hold", f"{errors[0].sentence}") if cannot else _not_measured(run, names, length)
    ratio = run.ms(ours, length) / run.ms(others, length)
    tiles = here[others].tiles
    numbers = (
        f"At {length:,} tokens v2 takes {words.milliseconds(run.ms(ours, length))} with it, "
        f"{words.milliseconds(run.ms(others, length))} with {tiles.block_m} × {tiles.block_n}"
    )
    if ratio <= 1 + LEAST_EFFECT:
        return Judgement("holds", f"{numbers}: nothing tried was faster by more than {100 * LEAST_EFFECT:g} %.")
    return Judgement("does not hold", f"{numbers}: {words.times(ratio)} as long.")


# The claims


def _of_the_table() -> tuple[Claim, ...]:
    native, *others = TABLE
    found = []
    for length in LENGTHS:
        for one in others:
            ratio = native.ms[length] / one.ms[length]
            claimed = words.times(ratio)
            found.append(
                Claim(
                    "Its table",
                    f"{one.version} is {claimed} as fast as native at {length:,} tokens ({one.ms[length]:.2f} ms "
                    f"against {native.ms[length]:.2f} ms).",
                    f"native's time over {one.version}'s, both in one job at {length:,} tokens",
                    _faster("native", (one.version,), length, claimed, ratio),
                )
            )
    return tuple(found)


_PAIR_LENGTHS = {(128, 128): (512,), (64, 256): (1024, 4096), (32, 512): (16384,)}
_NO_COUNTER = "FlashScope reads no counter of memory traffic, so nothing here decides it."
_NO_BLOCK_POINTER = "No kernel here loads through block pointers, so there is nothing to time beside plain indexing."

CLAIMS: tuple[Claim, ...] = (
    *_of_the_table(),
    Claim(
        "Speed",
        "v2 is 15 to 20 % faster than v1 at 16,384 tokens (on an A100).",
        "v1's time over v2's, both in one job at 16,384 tokens: at least 1.15",
        _faster("v1", ("v2",), 16384, "1.15 to 1.20×", 1.15, 1.2),
    ),
    Claim(
        "Speed",
        "v2 makes 2 to 3 times the use of the compute units that v1 makes.",
        "TFLOP/s of v2 over v1's at 16,384 tokens: the same GPU's peak stands under both, so it is the ratio of their times",
        _faster("v1", ("v2",), 16384, "2 to 3×", 2.0, 3.0),
    ),
    Claim(
        "Speed",
        "v3 is nearly 8 times faster than v2 at 32,768 tokens.",
        "v2's time over that of the fastest v3, Hopper's and FP8's (its kernel alone) among them, in one job at 32,768 tokens: "
        "at least 7",
        _faster("v2", V3_FORMS, 32768, "nearly 8×", 7.0, 8.0),
    ),
    Claim(
        "Speed",
        "Past 8,192 tokens v3 is the only choice.",
        "at 16,384 tokens no other version that is right takes less than twice the time of the fastest v3",
        _only_choice,
    ),
    Claim(
        "Speed",
        "tl.make_block_ptr is about 10 % faster than plain indexing.",
        "one kernel with each",
        _undecided(_NO_BLOCK_POINTER),
    ),
    Claim(
        "Memory",
        "At 4,096 tokens v1 needs 5 to 10 times less memory than standard attention.",
        "what a launch of native and of v1 adds to its inputs, at 4,096 tokens",
        _saves_memory,
    ),
    Claim(
        "Memory",
        "FP8 stores 75 % less than FP32.",
        "what the FP8 operands of v3 hold at 16,384 tokens, their scales among them, against Q, K and V in FP32",
        _storage,
    ),
    Claim("Memory", "FP8 needs 75 % less bandwidth than FP32.", "a count of memory traffic", _undecided(_NO_COUNTER)),
    *(
        Claim(
            "Blocks",
            f"{one.title} (BLOCK_M × BLOCK_N) is the choice {'from ' * one.lengths[0].isdigit()}{one.lengths}.",
            "v2 with it, 4 and 8 warps, against v2's own tiles and the other pairs: none is faster by more than 1 %",
            _pair(one, _PAIR_LENGTHS[one.block_m, one.block_n]),
        )
        for one in ADVICE
    ),
)
