"""Memory: what a request will need, before anything is allocated; and what one launch really took.

The estimate is arithmetic and needs no torch, so that the app can warn with it; take() imports torch when called.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.problem import AttentionProblem, TileConfig
from kernels.registry import Refused
from profiling.oracle_budget import heads_within, reference_budget, refuse_gradients, rows_within
from profiling.records import INTERPRETER, Memory, RunRequest
from profiling.words import bytes_

if TYPE_CHECKING:
    import torch

    from kernels.kernel import Operands
    from profiling.case import Step
    from profiling.nvml import Nvml
    from profiling.sampler import Sampler

FLUSH_BYTES = 256 << 20
_REFERENCE_BLOCK_BYTES = 1 << 30
_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a request will hold at once (modelled).

    outputs: what the call returns: out and lse, the gradients, or all five. scores: S and P, were they written out, which
    native does; score_matrices: how many matrices of their size native has at its peak. copies: native's K and V repeated for
    every head, and its mask. kept: the forward's results that a backward timed alone reads, native's P among them. quantised:
    the FP8 operands and scales. reference: the float64 check. flush: the buffer that empties the L2 cache.
    """

    inputs_bytes: int
    outputs_bytes: int
    scores_bytes: int
    writes_scores: bool
    copies_bytes: int
    quantised_bytes: int
    reference_bytes: int
    flush_bytes: int
    score_matrices: int = 2
    kept_bytes: int = 0

    @property
    def added_bytes(self) -> int:
        """What the call itself allocates."""
        written = self.scores_bytes * self.score_matrices // 2 if self.writes_scores else 0
        return self.outputs_bytes + self.copies_bytes + written

    @property
    def launch_bytes(self) -> int:
        """What must fit for a launch alone, neither checked nor timed."""
        return self.inputs_bytes + self.quantised_bytes + self.kept_bytes + self.added_bytes

    @property
    def total_bytes(self) -> int:
        """What must fit: the check and the launch do not overlap, the output does with both."""
        launch = self.added_bytes - self.outputs_bytes + self.flush_bytes
        held = self.inputs_bytes + self.outputs_bytes + self.quantised_bytes + self.kept_bytes
        return held + max(launch, self.reference_bytes)


def estimate(request: RunRequest, tiles: TileConfig | None = None, capability: int | None = None) -> MemoryEstimate:
    """What a request needs on its device; capability is the GPU's, for how many rows the check computes there."""
    problem, on_cpu = request.problem, request.device == INTERPRETER
    queries = problem.batch * problem.num_heads * problem.seq_len_q
    keys = problem.batch * problem.num_kv_heads * problem.seq_len_kv
    pairs = queries * problem.seq_len_kv
    is_native = request.kernel == "native"
    elements = (queries + 2 * keys) * problem.head_dim
    key_outer = tiles is not None and tiles.loop_order == "key"
    copies = 0
    if is_native:
        copies = 2 * problem.batch * problem.num_heads * problem.seq_len_kv * problem.head_dim * _ELEMENT_BYTES
        copies += problem.seq_len_q * problem.seq_len_kv if problem.causal else 0
    elif key_outer:
        copies = queries * (problem.head_dim + 2) * 4  # O, m and l in float32 between two key tiles
    budget = reference_budget(None if on_cpu else (capability or 90))
    inputs, out = elements * _ELEMENT_BYTES, queries * problem.head_dim * _ELEMENT_BYTES
    lse, written = 4 * queries, pairs * _ELEMENT_BYTES if is_native else 0
    reference = _reference_bytes(problem, rows_within(problem, budget), elements if request.precision.fp8 else 0)
    direction = request.direction
    return MemoryEstimate(
        # A backward alone starts from the forward's results; a gradient is as large as its input.
        inputs_bytes=inputs + {"forward": 0, "backward": 2 * out + lse, "both": out}[direction],
        outputs_bytes={"forward": out + lse, "backward": inputs, "both": out + lse + inputs}[direction],
        scores_bytes=2 * pairs * _ELEMENT_BYTES,
        writes_scores=is_native,
        copies_bytes=copies * (1 if direction == "forward" else 2),
        quantised_bytes=elements + 4 * (2 * queries + keys) if request.precision.fp8 else 0,
        reference_bytes=reference if direction == "forward" else max(reference, _gradients_bytes(problem, budget)),
        flush_bytes=0 if on_cpu else FLUSH_BYTES,
        # native's backward has dP and dS beside the P that its forward keeps.
        score_matrices=3 if direction == "both" else 2,
        kept_bytes={"forward": 0, "backward": written, "both": written + out + lse}[direction],
    )


def _gradients_bytes(problem: AttentionProblem, budget: float) -> int:
    """The float64 gradients of the heads that are checked; one head's operands and four blocks of scores."""
    group = problem.num_heads // problem.num_kv_heads
    of_head = 8 * (group * problem.seq_len_q + 2 * problem.seq_len_kv) * problem.head_dim
    block = 4 * min(_REFERENCE_BLOCK_BYTES, 8 * problem.seq_len_q * problem.seq_len_kv)
    return (heads_within(problem, budget) + 2) * of_head + block


def _reference_bytes(problem: AttentionProblem, rows: int, dequantised_elements: int) -> int:
    """The float64 output and the differences of a batch entry; keys, values and a block of scores (three of them live)."""
    out = 8 * problem.batch * problem.num_heads * rows * problem.head_dim
    difference = 3 * 8 * problem.num_heads * rows * problem.head_dim
    block = 3 * min(_REFERENCE_BLOCK_BYTES, 8 * rows * problem.seq_len_kv)
    of_operands = out + 2 * 4 * dequantised_elements if dequantised_elements else 0
    return out + difference + block + 2 * 8 * problem.seq_len_kv * problem.head_dim + of_operands


def refuse_if_too_large(
    request: RunRequest, tiles: TileConfig | None, has_bytes: int, device_name: str, capability: int | None = None
) -> None:
    """Raise Refused when a request needs more than has_bytes, naming both and the longest sequence that fits.

    Or when its gradients cannot be checked on its device.
    """
    if request.direction != "forward":
        refuse_gradients(request.problem, reference_budget(None if request.device == INTERPRETER else (capability or 90)))
    need = estimate(request, tiles, capability)
    if need.total_bytes <= has_bytes:
        return
    scores_alone = need.writes_scores and need.scores_bytes > has_bytes
    needs = need.scores_bytes if scores_alone else need.total_bytes
    what = " for S and P" if scores_alone else " in all"
    name = "this machine" if request.device == INTERPRETER else f"this {device_name.removeprefix('NVIDIA ')}"
    fits = _longest_that_fits(request, tiles, has_bytes, capability)
    cure = "Nothing shorter fits." if fits is None else f"The longest power of two that fits is {fits:,} {_tokens(fits)}."
    length = max(request.problem.seq_len_q, request.problem.seq_len_kv)
    raise Refused(
        f"{request.kernel} at {length:,} {_tokens(length)} needs {bytes_(needs)}{what}; "
        f"{name} has {bytes_(has_bytes)} free. {cure}",
        needs=float(needs),
        has=float(has_bytes),
        unit="bytes",
    )


def _longest_that_fits(request: RunRequest, tiles: TileConfig | None, has_bytes: int, capability: int | None) -> int | None:
    problem = request.problem
    length = 1 << (max(problem.seq_len_q, problem.seq_len_kv).bit_length() - 1)
    while length:
        sizes = {"seq_len_q": min(problem.seq_len_q, length), "seq_len_kv": min(problem.seq_len_kv, length)}
        shorter = request.model_copy(update={"problem": problem.model_copy(update=sizes)})
        if estimate(shorter, tiles, capability).total_bytes <= has_bytes:
            return length
        length //= 2
    return None


def _tokens(count: int) -> str:
    return "token" if count == 1 else "tokens"


def free_host_bytes() -> int | None:
    """Host memory that can still be had, also inside a container's limit; None where the system does not tell."""
    known = [value for value in (_free_by_kernel(), _free_by_cgroup()) if value is not None]
    return min(known, default=None)


def _free_by_kernel() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _free_by_cgroup() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None


def free_gpu_bytes(device: torch.device) -> int:
    """What the driver has free, and what torch's allocator holds without using it."""
    import torch

    free, _total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def take(run: Callable[[], Step], need: MemoryEstimate, device: torch.device, nvml: Nvml, sampler: Sampler) -> Memory:
    """One launch, with torch's allocator and NVML watched. The sampler must be running."""
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    begin, nvml_before = time.perf_counter(), nvml.memory_used_bytes()
    torch.cuda.reset_peak_memory_stats(device)
    allocated = torch.cuda.memory_allocated(device)
    returned = run()
    torch.cuda.synchronize(device)
    # torch's allocator gives nothing back by itself: what NVML sees now is what the launch had at its peak.
    at_peak = [value for value in (nvml.memory_used_bytes(), sampler.peak_memory_bytes(begin)) if value is not None]
    peak, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    out_bytes, lse_bytes, gradients_bytes = _held(returned)
    del returned
    kept = torch.cuda.memory_allocated(device) - allocated
    torch.cuda.empty_cache()
    nvml_after = nvml.memory_used_bytes()
    values = {
        "nvml_used_before_bytes": nvml_before,
        "nvml_used_peak_bytes": max(at_peak, default=None),
        "nvml_used_after_bytes": nvml_after,
    }
    missing = {name: nvml.missing.get("memory", "NVML gave no reading") for name, value in values.items() if value is None}
    if "memory_reserved" in nvml.missing:
        missing["nvml_reserved"] = nvml.missing["memory_reserved"]
    return Memory(
        provenance="measured",
        inputs_bytes=need.inputs_bytes,
        outputs_bytes=need.outputs_bytes,
        scores_bytes=need.scores_bytes,
        torch_added_bytes=peak - allocated,
        torch_peak_allocated_bytes=peak,
        torch_peak_reserved_bytes=reserved,
        out_bytes=out_bytes,
        lse_bytes=lse_bytes,
        gradients_bytes=gradients_bytes,
        workspace_bytes=max(0, peak - allocated - out_bytes - lse_bytes - (gradients_bytes or 0)),
        kept_bytes=max(0, kept),
        missing=missing,
        **values,
    )


def _held(returned: Step) -> tuple[int, int, int | None]:
    """What out, lse and the gradients hold of what a launch has returned; None where there are no gradients."""
    output, gradients = returned.output, returned.gradients
    out, lse = (0, 0) if output is None else (_held_bytes(output.out), _held_bytes(output.lse))
    if gradients is None:
        return out, lse, None
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in (gradients.dq, gradients.dk, gradients.dv)}
    return out, lse, sum(map(_held_bytes, storages.values()))


def operands_bytes(operands: Operands) -> int | None:
    """What an FP8 pre-pass's codes, scales and shift of the lse hold; None of operands that are the inputs themselves."""
    if operands.q_scale is None:
        return None
    found = (operands.q, operands.k, operands.v, operands.q_scale, operands.k_scale, operands.v_scale, operands.lse_shift)
    return sum(map(_held_bytes, found))


def _held_bytes(tensor: torch.Tensor | None) -> int:
    """What a returned tensor keeps allocated, which for a view is all that it looks at; 0 where there is none."""
    return 0 if tensor is None else tensor.untyped_storage().nbytes()


def on_cpu(need: MemoryEstimate, has_backward: bool = False) -> Memory:
    """The record of an interpreted run: sizes by arithmetic, as nobody counts the CPU's allocations."""
    torch_says, nvml_says = "torch counts allocations on GPUs only", "the interpreter uses no GPU"
    names = (
        "torch_added_bytes", "torch_peak_allocated_bytes", "torch_peak_reserved_bytes",
        "out_bytes", "lse_bytes", "workspace_bytes", "kept_bytes", "curve", *(("gradients_bytes",) if has_backward else ()),
    )  # fmt: skip
    nvml_names = ("nvml_used_before_bytes", "nvml_used_peak_bytes", "nvml_used_after_bytes")
    return Memory(
        provenance="interpreted",
        inputs_bytes=need.inputs_bytes,
        outputs_bytes=need.outputs_bytes,
        scores_bytes=need.scores_bytes,
        missing=dict.fromkeys(names, torch_says) | dict.fromkeys(nvml_names, nvml_says),
        **dict.fromkeys((*names, *nvml_names)),
    )
