"""Whether this machine's measuring tells the truth: what is asked of it, and how the answers are judged. Pure.

Five promises stand behind every number, and each can be put to the test on the GPU at hand, with jobs as a user starts them:
two equal kernels are not called different; 5 % more work is found; the time is the one that NVIDIA's own tracing (CUPTI)
gives for the kernel; a run beside another program's load is flagged, and one in quiet is not. The battery gets a `Job`, which
runs requests as one job and returns its measurements, so that the counting and judging can be tested with a bench that lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.architecture import architecture
from kernels.problem import AttentionProblem, Precision
from kernels.registry import default_tiles
from profiling import words
from profiling.records import DeviceFacts, Flag, Measurement, Probe, RunRequest
from profiling.verdict import Verdict, verdict

Job = Callable[[Sequence[RunRequest]], tuple[Measurement, ...]]
"""Runs requests as one job, and returns a measurement for each."""
Say = Callable[[str], None]

KERNEL = "v2"
ONE_MORE = "v2-one-more-sequence"
"""v2 on 21 sequences where 20 are asked for: exactly 5 % more work in the same launch."""
BY_CUPTI = "v2-by-cupti"
"""v2, whose times are CUPTI's."""

EQUAL_PAIRS, MOST_TOLD_APART = 40, 1
WORK_PAIRS, FEWEST_FOUND = 20, 19
LOADED_RUNS = 20
PAIRS_A_JOB = 2
FURTHEST_FROM_CUPTI = 0.02
_PROBES: tuple[Probe, ...] = ("accuracy", "latency")
_SEQUENCES = 20


def _problem(batch: int, num_heads: int, seq_len: int, head_dim: int, causal: bool = False) -> AttentionProblem:
    return AttentionProblem(
        batch=batch, num_heads=num_heads, num_kv_heads=num_heads, seq_len_q=seq_len, seq_len_kv=seq_len,
        head_dim=head_dim, causal=causal,
    )  # fmt: skip


# From an eighth of a millisecond to a whole one on an H200: short kernels scatter most, and long jobs cost patience.
EQUAL_PROBLEMS = (
    _problem(8, 16, 2048, 128),
    _problem(16, 32, 1024, 64, causal=True),
    _problem(2, 16, 4096, 128),
    _problem(4, 32, 4096, 64, causal=True),
    _problem(4, 16, 4096, 64),
)
# So many programs that one sequence more adds whole waves of them, not a fraction that a tail would hide.
WORK_PROBLEM = _problem(_SEQUENCES, 64, 1024, 64)
LOADED_PROBLEM = _problem(8, 16, 2048, 128)
# A fifth of a millisecond and more there: events also see the microsecond or two that a launch takes to begin and to end.
CUPTI_PROBLEMS = (
    _problem(64, 16, 512, 128),
    _problem(64, 32, 512, 64, causal=True),
    _problem(16, 16, 1024, 128),
    _problem(32, 32, 1024, 64, causal=True),
    _problem(8, 16, 2048, 128),
    _problem(8, 32, 2048, 64, causal=True),
    _problem(2, 16, 4096, 128),
    _problem(1, 32, 8192, 64, causal=True),
)


@dataclass(frozen=True)
class Check:
    """One promise, put to the test. bar: what it must keep; found: what came out, in words; details: every figure.

    problems: a sentence for each job that gave no answer. Then it is not kept, whatever the others said.
    """

    name: str
    promise: str
    bar: str
    kept: bool
    found: str
    details: tuple[dict[str, Any], ...]
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name, "promise": self.promise, "bar": self.bar, "kept": self.kept, "found": self.found,
            "problems": list(self.problems), "details": list(self.details),
        }  # fmt: skip


@dataclass
class Battery:
    """The checks on one GPU. A run in quiet is looked at twice: for its word, and for whether it was flagged as disturbed.

    device: whose tiles the requests have. job: see Job. say: hears one line a job.
    """

    device: DeviceFacts
    job: Job
    say: Say = lambda line: None
    quiet: list[Measurement] = field(default_factory=list)
    _untimed: list[str] = field(default_factory=list)

    def equal_kernels(self) -> Check:
        """A/A: two requests that are the same, in one job; a word that tells them apart is a false alarm."""
        compared = self._compared(EQUAL_PAIRS, EQUAL_PROBLEMS, KERNEL, "equal")
        said = Counter(found.word for found in compared)
        apart = said["FASTER"] + said["SLOWER"]
        return Check(
            name="equal",
            promise="two equal kernels are not called different",
            bar=f"at most {MOST_TOLD_APART} of {EQUAL_PAIRS} pairs FASTER or SLOWER",
            kept=apart <= MOST_TOLD_APART and not said[None],
            found=f"{apart} of {len(compared)} ({_counted(said)})",
            details=tuple(map(_figures, compared)),
            problems=self._problems_of(compared),
        )

    def more_work(self) -> Check:
        """A kernel against itself with one sequence more than the 20 that are asked for: SLOWER is right."""
        compared = self._compared(WORK_PAIRS, (WORK_PROBLEM,), ONE_MORE, "5 % more")
        said = Counter(found.word for found in compared)
        return Check(
            name="work",
            promise="5 % more work is found",
            bar=f"at least {FEWEST_FOUND} of {WORK_PAIRS} pairs SLOWER",
            kept=said["SLOWER"] >= FEWEST_FOUND and not said[None],
            found=f"{said['SLOWER']} of {len(compared)} ({_counted(said)}){_added_time(compared)}",
            details=tuple(map(_figures, compared)),
            problems=self._problems_of(compared),
        )

    def against_cupti(self) -> Check:
        """The product's median against that of CUPTI's kernel times, from launches in the same rounds, shape by shape."""
        compared: list[dict[str, Any]] = []
        problems: list[str] = []
        for number, problem in enumerate(CUPTI_PROBLEMS, 1):
            ((ours, theirs),) = self._pairs(problem, BY_CUPTI)
            untimed = next((one for one in (ours, theirs) if one.latency is None), None)
            if untimed is not None:
                problems.append(_why_untimed(untimed))
                self.say(f"CUPTI {number} of {len(CUPTI_PROBLEMS)}: {problem.title}: {problems[-1]}")
                continue
            ours_ms, theirs_ms = ours.latency.median_ms, theirs.latency.median_ms
            off = ours_ms / theirs_ms - 1.0
            compared.append({"problem": problem.title, "ours_ms": ours_ms, "cupti_ms": theirs_ms, "off": off})
            self.say(f"CUPTI {number} of {len(CUPTI_PROBLEMS)}: {problem.title}: {words.signed_percent(off)}")
        within = [one for one in compared if abs(one["off"]) <= FURTHEST_FROM_CUPTI]
        furthest = max((one["off"] for one in compared), key=abs, default=None)
        return Check(
            name="cupti",
            promise="the median is CUPTI's kernel time",
            bar=f"within {100 * FURTHEST_FROM_CUPTI:.0f} % on {len(CUPTI_PROBLEMS)} of {len(CUPTI_PROBLEMS)} shapes",
            kept=len(within) == len(CUPTI_PROBLEMS),
            found=f"{len(within)} of {len(CUPTI_PROBLEMS)}"
            + ("" if furthest is None else f", furthest {words.signed_percent(furthest)}"),
            details=tuple(compared),
            problems=tuple(dict.fromkeys(problems)),
        )

    def beside_load(self) -> Check:
        """Runs while another process keeps the GPU busy, which the caller has started; each must say so."""
        found = []
        for number in range(LOADED_RUNS):
            (one,) = self.job((self._request(LOADED_PROBLEM, KERNEL),))
            found.append(one)
            self.say(f"load {number + 1} of {LOADED_RUNS}: {'flagged' if is_flagged(one) else 'not flagged'}")
        flagged = [one for one in found if is_flagged(one)]
        return Check(
            name="load",
            promise="a run beside another program's load is flagged",
            bar=f"{LOADED_RUNS} of {LOADED_RUNS} flagged",
            kept=len(flagged) == LOADED_RUNS,
            found=f"{len(flagged)} of {len(found)}",
            details=tuple(_run_figures(one) for one in found),
            problems=tuple(dict.fromkeys(_why_untimed(one) for one in found if one.latency is None)),
        )

    def quiet_runs(self) -> Check:
        """The runs of the other checks, with nothing else on the GPU: a flag that is always there says nothing."""
        flagged = [one for one in self.quiet if is_flagged(one)]
        sentences = dict.fromkeys(flag.sentence for one in flagged for flag in one.flags if _disturbed(flag))
        return Check(
            name="quiet",
            promise="a run in quiet is not flagged as disturbed",
            bar=f"0 of {len(self.quiet)} flagged",
            kept=not flagged and bool(self.quiet),
            found=f"{len(flagged)} of {len(self.quiet)}",
            details=tuple(_run_figures(one) for one in flagged),
            problems=tuple(sentences),
        )

    def _compared(self, count: int, problems: Sequence[AttentionProblem], other: str, name: str) -> list[Verdict]:
        """The verdicts on so many pairs of v2 and another, some pairs a job, one problem after the other."""
        found: list[Verdict] = []
        for number in range(-(-count // PAIRS_A_JOB)):
            for before, after in self._pairs(problems[number % len(problems)], other, min(PAIRS_A_JOB, count - len(found))):
                found.append(verdict(before, after, same_job=True))
                self._untimed += [_why_untimed(one) for one in (before, after) if one.latency is None]
                self.say(f"{name} {len(found)} of {count}: {found[-1].word or found[-1].refused}{_ratio(found[-1])}")
        return found

    def _problems_of(self, compared: Sequence[Verdict]) -> tuple[str, ...]:
        """Why there is no word, once each: what went wrong in the job, or else what the verdict refused."""
        untimed, self._untimed = self._untimed, []
        return tuple(dict.fromkeys(untimed or [found.refused for found in compared if found.word is None]))

    def _pairs(self, problem: AttentionProblem, other: str, count: int = 1) -> list[tuple[Measurement, Measurement]]:
        """One job of so many pairs; what was timed is kept as a run in quiet."""
        found = self.job([self._request(problem, kernel) for kernel in (KERNEL, other) * count])
        self.quiet += [one for one in found if one.latency is not None]
        return list(zip(found[::2], found[1::2], strict=True))

    def _request(self, problem: AttentionProblem, kernel: str) -> RunRequest:
        tiles = default_tiles(KERNEL, problem, Precision(), architecture(self.device.capability))
        return RunRequest(kernel=kernel, problem=problem, tiles=tiles, device=self.device.id, probes=_PROBES)


def is_flagged(one: Measurement) -> bool:
    """Whether a measurement says that something else used the GPU."""
    return any(map(_disturbed, one.flags))


def _disturbed(flag: Flag) -> bool:
    return flag.name == "contended" and flag.severity in ("caution", "bad")


def _counted(said: Counter[str | None]) -> str:
    order = ("FASTER", "SLOWER", "SAME", "UNCLEAR", None)
    return ", ".join(f"{said[word]} {word or 'without a word'}" for word in order if said[word])


def _added_time(compared: Sequence[Verdict]) -> str:
    """', +4.9 to +5.2 % time', of those that have a ratio."""
    added = sorted(1.0 / found.ratio - 1.0 for found in compared if found.ratio)
    return f", {words.signed_percent(added[0])} to {words.signed_percent(added[-1])} time" if added else ""


def _ratio(found: Verdict) -> str:
    return "" if found.ratio is None else f" {words.ratio(found.ratio)}"


def _figures(found: Verdict) -> dict[str, Any]:
    return {
        "word": found.word,
        "ratio": found.ratio,
        "interval": None if found.low is None else [found.low, found.high],
        "rounds_ms": [list(one) for one in found.rounds],
        "refused": found.refused,
    }


def _run_figures(one: Measurement) -> dict[str, Any]:
    flags = [flag.sentence for flag in one.flags if flag.severity in ("caution", "bad")]
    return {"median_ms": one.latency.median_ms if one.latency else None, "flagged": is_flagged(one), "flags": flags}


def _why_untimed(one: Measurement) -> str:
    return one.error.sentence if one.error is not None else f"{one.request.kernel} was not timed."
