"""The one place that says how each number of a result is taken: what it is called, its unit, one sentence. Pure.

KINDS are the numbers at the top of a result and those of its facts; COLUMNS and ROWS those of the tables behind the charts.
A number that is shown without standing here fails tests/test_how_taken.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.metric import Figure
from profiling.records import FLOPS_OF_FORWARD, Latency, Measurement

Sentence = str | Callable[[Measurement], str]


@dataclass(frozen=True)
class Kind:
    """What a number is called, its unit, and how it is taken, which may depend on the measurement."""

    what: str
    unit: str
    sentence: Sentence

    def said(self, measurement: Measurement) -> str:
        """The sentence for one measurement."""
        return self.sentence if isinstance(self.sentence, str) else self.sentence(measurement)


def figure(name: str, text: str, measurement: Measurement, provenance: str) -> Figure:
    """A number of a measurement as it is shown. Raises KeyError for a name that is not in KINDS."""
    kind = KINDS[name]
    return Figure(text, kind.what, kind.unit, provenance, kind.said(measurement))


def round_count(latency: Latency) -> int:
    """In how many interleaved rounds a latency was taken."""
    return len(set(latency.round_of.numpy().tolist()))


def _launches(latency: Latency | None) -> str:
    if latency is None:
        return ""
    rounds = round_count(latency)
    launches = "1 launch" if latency.n == 1 else f"{latency.n:,} launches"
    return f"{launches} in {rounds} interleaved round{'' if rounds == 1 else 's'}"


def _median(measurement: Measurement) -> str:
    return (
        f"The median of {_launches(measurement.latency)}, each between two CUDA events, the L2 cache overwritten before it. "
        "The first launch is not among them; none is dropped."
    )


def _warm(measurement: Measurement) -> str:
    each = measurement.warm.launches_per_sample if measurement.warm is not None else 1
    launches = "one launch" if each == 1 else f"{each:,} launches in a row"
    return (
        f"The median over replays of a CUDA graph of {launches}, between two CUDA events, over their number: the L2 cache as "
        "the last launch left it, nothing between launches. Another quantity than cold; without pauses the GPU draws more "
        "power, so under a power cap it can be slower."
    )


def _samples(measurement: Measurement) -> str:
    latency = measurement.latency
    looked = latency.outputs_checked if latency is not None else None
    fresh = f" After {looked:,} of them the output was looked at: each time it had been written anew." if looked else ""
    return f"How many launches were timed and kept, all of them.{fresh}"


def _stopped(measurement: Measurement) -> str:
    return (
        "Why no more were timed. NVIDIA nvbench's rule: 10 samples and half a second at least, then until the noise is below "
        "0.5 % or has settled, for 15 s at most."
    )


def _energy(measurement: Measurement) -> str:
    energy = measurement.energy
    window = f"{energy.window_s:.2f} s" if energy is not None and energy.window_s is not None else "a second or more"
    return (
        f"The whole card's average power over {window} of launches in a row, by NVML's energy counter, times the mean time of "
        "a launch in them; L2 not flushed."
    )


def _rows(measurement: Measurement) -> str:
    accuracy = measurement.accuracy
    is_all = accuracy is None or accuracy.rows_checked == accuracy.rows_total
    return "all rows" if is_all else "the rows checked"


def _relative_error(measurement: Measurement) -> str:
    fp8 = " The reference reads the same FP8 operands as the kernel." if measurement.request.precision.fp8 else ""
    return (
        f"‖out − reference‖ over ‖reference‖, {_rows(measurement)}; the reference is float64, computed tile by tile from the "
        f"same inputs in the same job.{fp8}"
    )


def _allowed(measurement: Measurement) -> str:
    because = measurement.accuracy.allowed_because if measurement.accuracy else ""
    return f"What rounding alone may cause, derived beforehand: {because.rstrip('.')}."


def _gradient_error(measurement: Measurement) -> str:
    given = " of the FP8 forward's own output and log-sum-exp" if measurement.request.precision.fp8 else ""
    return (
        f"‖found − reference‖ over ‖reference‖ of the gradient of sum(out ∘ dO), dO N(0, 1); the reference is float64{given}, "
        "computed in the same job. First stands the one that uses most of what it is allowed."
    )


def _gradient_allowed(measurement: Measurement) -> str:
    because = measurement.gradients.worst[1].allowed_because if measurement.gradients else ""
    return f"What rounding alone may cause, with these inputs: {because.rstrip('.')}."


def _part(measurement: Measurement) -> str:
    if measurement.environment.device.kind == "interpreter":
        return "One call on the CPU, by a clock on the wall: it says nothing of a GPU."
    return "The median of this part alone, timed in the rounds of the step, the L2 cache overwritten before each launch."


def _throughput(measurement: Measurement) -> str:
    pairs = "N² / 2 when causal" if measurement.request.problem.causal else "N² without a mask"
    times = FLOPS_OF_FORWARD[measurement.request.direction]
    if times != 1:
        return (
            f"{times:g} · 4 · batch · heads · pairs · head_dim operations (pairs: {pairs}; a backward counts as 2.5 forwards, "
            "the papers' convention) over the median latency."
        )
    return f"4 · batch · heads · pairs · head_dim operations (pairs: {pairs}, the papers' convention) over the median latency."


def _share(measurement: Measurement) -> str:
    return f"The throughput over the dense rate of the data sheet for this number format ({_source(measurement)})."


def _source(measurement: Measurement) -> str:
    return (measurement.environment.device.peak_source or "the table of data sheets").rstrip(".")


def _interpreted_time(measurement: Measurement) -> str:
    ran = "Triton's interpreter" if measurement.tiles is not None else "PyTorch"
    return f"One call of {ran} on the CPU, by a clock on the wall: it says nothing of a GPU."


KINDS: dict[str, Kind] = {
    "relative_error": Kind("relative error", "a ratio, no unit", _relative_error),
    "allowed_error": Kind("allowed error", "a ratio, no unit", _allowed),
    "largest_error": Kind(
        "largest absolute error",
        "the output's own",
        "The largest distance of one element of the output from the float64 reference.",
    ),
    "end_to_end_error": Kind(
        "error with rounding to FP8",
        "a ratio, no unit",
        "The relative error beside a float64 reference of the inputs as they were before FP8: their rounding counts.",
    ),
    "gradient_error": Kind("relative error of a gradient", "a ratio, no unit", _gradient_error),
    "gradient_allowed": Kind("allowed error of a gradient", "a ratio, no unit", _gradient_allowed),
    "heads_checked": Kind(
        "heads checked",
        "key-value heads",
        "Whose dq, dk and dv were compared with the reference, all rows of each: drawn at random where all take too long.",
    ),
    "gradients_memory": Kind("gradients", "bytes, binary units", "What the returned dq, dk and dv hold."),
    "forward_median": Kind("forward in it", "ms or µs", _part),
    "backward_median": Kind("backward in it", "ms or µs", _part),
    "preprocess_median": Kind("pre-process in it", "ms or µs", _part),
    "rows_checked": Kind(
        "rows checked",
        "rows",
        "Rows of every head compared with the reference: first, last, at block boundaries, then random ones.",
    ),
    "non_finite": Kind("values not finite", "values", "NaN and infinite elements of the output, counted over all of it."),
    "wall_time": Kind("wall time", "s, ms or µs", _interpreted_time),
    "median": Kind("median latency, L2 cold", "ms or µs", _median),
    "fastest": Kind("fastest launch", "ms or µs", "The least of the same samples: the lower end of the interval to judge by."),
    "third_quartile": Kind(
        "third quartile", "ms or µs", "Three launches in four were as fast: the upper end of the interval to judge by."
    ),
    "launches": Kind("launches", "launches", _samples),
    "noise": Kind("noise", "%", "The standard deviation of the samples over their mean."),
    "stopped": Kind("why timing stopped", "in words", _stopped),
    "exposed": Kind(
        "launches that the host held up",
        "launches",
        "Samples that the GPU began before the host had queued them whole: the host's time may be in them.",
    ),
    "warm_median": Kind("median latency, L2 warm", "ms or µs", _warm),
    "warm_fastest": Kind("fastest, L2 warm", "ms or µs", "The least of the warm samples."),
    "warm_third_quartile": Kind("third quartile, L2 warm", "ms or µs", "Three warm samples in four were as fast."),
    "warm_samples": Kind("warm samples", "samples", "How many replays were timed and kept, all of them."),
    "energy": Kind("energy per launch", "mJ or J", _energy),
    "mean_power": Kind(
        "average power", "W", "The energy counter's increase between two of its changes, over the time between."
    ),
    "energy_window": Kind("time of the window", "s", "Between the two changes of the counter that the energy is taken from."),
    "energy_launches": Kind("launches in a row", "launches", "How many were launched for it, beside no timing."),
    "sampled_energy": Kind(
        "power sampled, against the counter",
        "%",
        "The instant power that NVML read meanwhile, integrated over the same window, over the counter's energy, less 1.",
    ),
    "tflop_per_joule": Kind(
        "operations a joule", "TFLOP/J", "The operations that the throughput counts, over the energy of a launch."
    ),
    "prepass_median": Kind(
        "latency with the FP8 pre-pass",
        "ms or µs",
        "The median with the kernels that quantise Q, K and V launched before the attention kernel, both between the events.",
    ),
    "throughput": Kind("throughput", "TFLOP/s", _throughput),
    "throughput_prepass": Kind(
        "throughput with the FP8 pre-pass",
        "TFLOP/s",
        "The same operations over the median that includes the quantisation of Q, K and V.",
    ),
    "share_of_peak": Kind("share of the data sheet's rate", "%", _share),
    "peak": Kind(
        "data sheet's dense rate",
        "TFLOP/s",
        lambda one: f"Read from {one.environment.device.peak_source or 'the table of data sheets'}.",
    ),
    "added_memory": Kind(
        "memory it adds",
        "bytes, binary units",
        "The peak of torch's allocated bytes during one launch, less those allocated before it (the inputs).",
    ),
    "scores_memory": Kind(
        "S and P alone", "bytes, binary units", "What both would take, were they written out: computed from the shape."
    ),
    "torch_allocated": Kind(
        "torch allocated",
        "bytes, binary units",
        "The peak of what torch's tensors held during one launch, the inputs among them.",
    ),
    "torch_reserved": Kind(
        "torch reserved",
        "bytes, binary units",
        "The peak of what torch's allocator held from the driver: those tensors, and room it keeps for the next.",
    ),
    "nvml_peak": Kind(
        "NVML used",
        "bytes, binary units",
        "The most that all processes held on the whole GPU during that launch: contexts and code, too.",
    ),
    "outputs_memory": Kind("output and lse", "bytes, binary units", "What the returned tensors hold."),
    "workspace": Kind("workspace", "bytes, binary units", "The rest of what it adds, given back before the call ends."),
}

COLUMNS: dict[str, dict[str, str]] = {
    "versions": {
        "rel. error": "‖out − reference‖ over ‖reference‖, the reference in float64, in the same job; no unit.",
        "gradients": "Of dq, dk and dv the one that uses most of what it is allowed: its relative error, in float64, no unit.",
        "TFLOP/s": "4 · batch · heads · pairs · head_dim operations, 2.5 times that of a backward, over the median latency; "
        "pairs: N² / 2 when causal.",
        "median": "The median of a version's launches, by CUDA events; in the interpreter one call by a clock on the wall.",
        "min to q3": "The fastest launch, and the time that three launches in four did not pass.",
        "n": "How many launches were timed; none is dropped.",
        "warm": "The median with the L2 cache warm, of launches in a CUDA graph: another quantity than the median.",
        "energy": "The card's average power over launches in a row, by NVML's energy counter, times the time of a launch.",
        "vs native": "The median of native over the median of this version, in the same job.",
        "tiles": "BLOCK_M × BLOCK_N, warps of a program, stages of its loads.",
    },
    "step": {
        "forward": "The median of the forward alone, timed in the rounds of the step.",
        "pre-process": "The median of delta = rowsum(dO ∘ O) alone, with which the backward begins.",
        "rest of the backward": "The median of the whole backward less that of its pre-process.",
        "sum": "Of these parts; the L2 cache was flushed before each, so that it is no step's time.",
        "step": "The median of forward and backward launched one after the other, which is the step's time.",
        "backward": "The whole backward's share of the sum.",
    },
    "launches": {
        "cache": "cold: the L2 cache was overwritten before each launch; warm: it was as the last launch left it.",
        "round": "The interleaved round, in the order taken.",
        "n": "How many samples it has, a launch each, or the mean of a CUDA graph's. The CSV file has them all.",
        "min, ms": "The fastest launch of the round, by CUDA events.",
        "median, ms": "The median of the round.",
        "q3, ms": "The third quartile: three samples in four did not pass it.",
        "max, ms": "The slowest launch of the round.",
        "off": "The round's median over the median of all samples, less 1.",
    },
    "limits": {
        "tiles": "BLOCK_M × BLOCK_N, and the loads in flight.",
        "needs": "What one program of these tiles takes, read off the compiler's output, or computed from the shape.",
        "limit": "What one program gets on this device.",
    },
    "rounds": {
        "round": "Its place in the job.",
        "A": "The median of A's launches in this round, in ms.",
        "B": "The median of B's launches in this round, in ms.",
        "A ÷ B": "The ratio of both: above 1 B is faster.",
    },
    "sides": {
        "launches": "How many launches were timed; none is dropped.",
        "fastest": "The least of the samples.",
        "median": "The median of the samples.",
        "third quartile": "The time that three launches in four did not pass.",
        "slowest": "The largest of the samples.",
    },
    "sweep": {
        "tiles": "BLOCK_M × BLOCK_N, warps of a program, stages of its loads.",
        "BLOCK_M": "Queries a tile.",
        "BLOCK_N": "Keys a tile.",
        "warps": "Warps of a program.",
        "stages": "Loads in flight.",
        "TFLOP/s": "4 · batch · heads · pairs · head_dim operations over the median launch; pairs: N² / 2 when causal.",
        "median": "The median launch, L2 flushed, by CUDA events; in the interpreter one call by a clock on the wall.",
        "n": "How many launches were timed; none is dropped.",
        "shared memory": "KiB a program, from the compiled kernel’s own header.",
        "registers": "32-bit registers a thread, as ptxas allotted them.",
        "spills": "Bytes of stack a thread: what did not fit in registers.",
        "why": "Of what has no time: what the version, the compiler or the launch said.",
    },
    "ranking": {
        "rank": "Shared by those that cannot be told from the first of the rank, by the rules of a comparison.",
        "tiles": "BLOCK_M × BLOCK_N, warps of a program, stages of its loads.",
        "TFLOP/s": "4 · batch · heads · pairs · head_dim operations over the median launch; pairs: N² / 2 when causal.",
        "median": "The median launch, L2 flushed, by CUDA events.",
        "min to q3": "The fastest launch, and the time that three launches in four did not pass.",
        "behind": "Its median over the best’s; where the screening alone timed it, scaled by what the finals changed.",
        "timed": "finals: again, in rounds shared with the other finalists, by the full rule; once: in the screening alone.",
    },
    "recommended": {
        "tokens": "The sequence length.",
        "best here": "The fastest configuration of this sweep at this length, its output checked.",
        "TFLOP/s": "4 · batch · heads · pairs · head_dim operations over its median launch.",
        "over the default": "The default’s time over the best’s, with its interval where there is one.",
        "the article’s": "The pair that the article recommends for this length, in the warps and stages that are best for it.",
        "its TFLOP/s": "The same operations over the median launch of the article’s pair, or why it has none.",
        "over the article’s": "The article’s time over the best’s, with its interval where there is one.",
    },
    "scaling": {
        "tokens": "The sequence length.",
        "tiles": "BLOCK_M × BLOCK_N, warps of a program, stages of its loads.",
        "median": "The median launch, L2 flushed, by CUDA events.",
        "TFLOP/s": "4 · batch · heads · pairs · head_dim operations over the median launch; pairs: N² / 2 when causal.",
        "n": "How many launches were timed; none is dropped.",
    },
    "ladder": {
        "what is new": "What this rung has that the rung above it has not.",
        "tiles": "BLOCK_M × BLOCK_N, warps of a program, stages of its loads: each version’s default here.",
        "median": "The median launch, L2 flushed, by CUDA events.",
        "step": "The time of the rung above over this one’s, round by round of one job, with the interval of 98 %.",
        "so far": "The first rung’s median over this one’s.",
        "n": "How many launches were timed; none is dropped.",
    },
}

COMPILED_ROWS: dict[str, str] = {
    "registers": "32-bit registers a thread, as ptxas allotted them, of the most that it may.",
    "spills": "Bytes of stack a thread: these kernels keep nothing there but what did not fit in registers.",
    "shared memory": "KiB a program, from the compiled kernel's own header, of what one program gets at the most.",
    "warps per SM": "Warps that can live on an SM at once, computed from registers, shared memory and warps a program.",
    "programs per SM": "Programs that can live on an SM at once, computed likewise.",
    "limited by": "What keeps one more program off the SM.",
    "compiled in": "Wall time for all kernels of the call together; where the cache had them, of reading it.",
    "instructions": "Instructions of the SASS by kind, counted in the disassembly, not in what ran.",
}
COMPILED_ALONE = "Wall time for the attention’s kernel alone, while the machine compiled other cells."

TIMELINE_ROWS: dict[str, str] = {
    "Power": "NVML's instant power of the whole card, in W, or its average over a second where it says so.",
    "SM clock": "The clock of the SMs at that moment, in MHz, by NVML.",
    "Memory clock": "The clock of the memory at that moment, in MHz, by NVML.",
    "Temperature": "Of the die, in °C, by NVML.",
    "Utilisation": "How much of NVML's last period (1/6 to 1 s) some kernel, of anyone, ran: not how full the GPU was.",
    "Memory used": "What all processes hold on the whole GPU, in binary units, by NVML, without what the driver reserves.",
    "Memory reserved": "What the driver keeps for itself, in binary units, by NVML: no process can have it.",
    "Memory in all": "All memory of the GPU, in binary units, by NVML.",
    "Power limit": "What the card may take before it lowers its clocks, in W, by NVML.",
    "Highest SM clock": "The most that this model can do, in MHz, by NVML.",
    "Highest memory clock": "The most that this model can do, in MHz, by NVML.",
    "Clocks held down": "NVML's reasons, read with the rest: from the first moment that showed one to the last.",
    "No answer": "NVML was asked and failed: nothing is drawn there.",
    "Launches": "When launches of a kernel ran, by the host's clock, from the first queued to the last ended.",
}

FACTS: dict[str, str] = {
    "tiles": "BLOCK_M × BLOCK_N, warps of a program, stages of its loads: what the launch had.",
    "driver": "NVIDIA's driver, as NVML names it.",
    "commit": "The commit of FlashScope's own source that made this record.",
    "started": "When the worker began with the job, by its clock.",
    "took": "From the start of the job to this measurement's end, by the worker's clock: checking and compiling included.",
    "allowed error": "How the error that is allowed was derived, before anything ran.",
    "first launch, untimed": "One launch by a clock on the wall, compiling included where it was not cached; in no sample.",
}
"""How the numbers about a run were taken, by what result_facts.facts calls them."""
