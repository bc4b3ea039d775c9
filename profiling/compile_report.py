"""What the compiler made of a request's Triton kernels, for any GPU, also on a machine that has none."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernels.architecture import Architecture, architecture
from kernels.kernel import TORCH_DTYPES, AttentionOutput
from kernels.problem import AttentionProblem, TileConfig
from kernels.registry import Refused, default_tiles, load, load_backward, refuse, stamping_lanes, version
from profiling.occupancy import occupancy
from profiling.records import CompileReport, RunRequest

_COUNTED = {
    "matrix products": ("HGMMA", "QGMMA", "HMMA", "QMMA", "UTCHMMA", "UTCQMMA", "UTCOMMA"),
    "tile copies by the copy engine": ("UTMALDG",),
    "asynchronous copies by address": ("LDGSTS",),
    "exp2": ("MUFU.EX2",),
    "shuffles": ("SHFL",),
    "spill loads and stores": ("LDL", "STL"),
    "barriers": ("BAR",),
}


def compile_reports(request: RunRequest, capability: int) -> tuple[CompileReport, ...]:
    """Compile every Triton kernel of the request's forward for a capability, launching none; the attention itself comes last.

    Raises Refused when the attention does not fit in the GPU's shared memory, and what Triton raises when it cannot
    compile. Must run where TRITON_INTERPRET is not set. Versions without Triton
    kernels of ours (native, peers) give an empty tuple.
    """
    if not version(request.kernel).has_tiles:
        return ()
    arch = architecture(capability)
    tiles = request.tiles or default_tiles(request.kernel, request.problem, request.precision, arch)
    refuse(request.kernel, request.problem, request.precision, tiles, arch)
    reports = _reports(request.model_copy(update={"tiles": tiles}), arch)
    if (refused := too_large(reports[-1], tiles, arch)) is not None:
        raise refused
    return reports


def too_large(report: CompileReport, tiles: TileConfig, arch: Architecture, of: str = "") -> Refused | None:
    """Why a kernel with these tiles does not fit in the GPU's shared memory, or None where it does.

    of: which kernel, where there are several that have tiles.
    """
    needs_bytes, has_bytes = report.shared_memory_bytes, arch.shared_memory_per_block_bytes
    if needs_bytes <= has_bytes:
        return None
    return Refused(
        f"{of}{': ' * bool(of)}BLOCK_N = {tiles.block_n} does not fit: with BLOCK_M = {tiles.block_m} and {tiles.num_stages} "
        f"stages it needs {needs_bytes / 1024:.0f} KiB of shared memory, and one program on sm_{arch.capability} gets "
        f"{has_bytes / 1024:.0f} KiB.",
        needs=needs_bytes, has=has_bytes, unit="bytes",
    )  # fmt: skip


def stamped_programs_per_sm(request: RunRequest, capability: int) -> int:
    """How many programs of a version's stamped variant (kernels.stamps) fit on one SM at once; request.tiles must be there."""
    return _reports(request, architecture(capability), stamped=True)[-1].programs_per_sm


def _reports(request: RunRequest, arch: Architecture, stamped: bool = False) -> tuple[CompileReport, ...]:
    compiled, compile_ms = compiled_kernels(request, arch, stamped)
    return tuple(report_of(name, one, arch, compile_ms) for name, one in compiled.items())


def compiled_kernels(request: RunRequest, arch: Architecture, stamped: bool = False) -> tuple[dict[str, Any], float]:
    """What Triton made of each kernel of the forward of a request that names its tiles; ms that they took together.

    The attention's comes last.
    """
    from kernels.launch import CompileOnly
    from kernels.stamps import StampBuffers

    kernel, problem, launch = load(request.kernel), request.problem, CompileOnly(arch.capability)
    q, k, v = _nowhere(problem, request.precision.dtype)
    lanes = stamping_lanes(request.kernel, request.tiles) if stamped else 1
    watched = {"stamps": StampBuffers.on("meta", problem, request.tiles, lanes)} if stamped else {}
    started = time.perf_counter()
    kernel.forward(kernel.prepare(q, k, v, request.precision, launch), problem, request.tiles, launch, **watched)
    return launch.compiled, (time.perf_counter() - started) * 1e3


def compiled_backward(request: RunRequest, arch: Architecture) -> tuple[dict[str, Any], dict[str, Any], float]:
    """What Triton made of each kernel of the backward of a request that names its tiles: (before, own, ms).

    before: what runs first, once for all gradients (delta), where that is a step of its own; own: what makes the gradients.
    ms: what all of them took together.
    """
    import torch

    from kernels.launch import CompileOnly

    problem = request.problem
    backward, first, rest = load_backward(request.kernel, problem), CompileOnly(arch.capability), CompileOnly(arch.capability)
    q, k, v = _nowhere(problem, request.precision.dtype)
    output = AttentionOutput(torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32, device="meta"))
    operands, d_out = backward.prepare(q, k, v), torch.empty_like(q)
    started = time.perf_counter()
    delta = backward.preprocess(operands, output, d_out, problem, first)
    backward.backward(operands, output, d_out, problem, request.backward_tiles, rest, delta)
    return first.compiled, rest.compiled, (time.perf_counter() - started) * 1e3


def _nowhere(problem: AttentionProblem, dtype: str) -> tuple[Any, Any, Any]:
    """q, k and v with shapes and no memory."""
    import torch

    query = (problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim)
    key = (problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim)
    return tuple(torch.empty(shape, dtype=TORCH_DTYPES[dtype], device="meta") for shape in (query, key, key))


def report_of(name: str, compiled: Any, arch: Architecture, compile_ms: float) -> CompileReport:
    """The report of one compiled Triton kernel; compile_ms is the time of all kernels of the request together."""
    import triton

    registers, stack_bytes, counts = read_cubin(compiled.asm["cubin"])
    warps = compiled.metadata.num_warps
    shared = compiled.metadata.shared
    programs, limited_by = occupancy(arch, registers, warps, shared)
    return CompileReport(
        kernel=name, capability=arch.capability, triton_version=triton.__version__, compile_ms=compile_ms,
        registers_per_thread=registers, max_registers_per_thread=arch.max_registers_per_thread, spill_bytes=stack_bytes,
        shared_memory_bytes=shared, shared_memory_limit_bytes=arch.shared_memory_per_block_bytes, warps_per_program=warps,
        programs_per_sm=programs, warps_per_sm=programs * warps, max_warps_per_sm=arch.max_warps_per_sm,
        limited_by=limited_by, counts=counts,
    )  # fmt: skip


@lru_cache(maxsize=64)
def read_cubin(cubin: bytes) -> tuple[int, int, dict[str, int]]:
    """(registers a thread, bytes of stack a thread, counts of SASS instructions), by the tools in Triton's own wheel.

    These kernels keep nothing on the stack but what did not fit in registers, so the stack is the spill.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = nvidia_tool("cuobjdump", "--dump-resource-usage", file.name)
        sass = nvidia_tool("nvdisasm", "--print-code", file.name)
    registers, stack = (int(re.search(rf"{field}:(\d+)", usage).group(1)) for field in ("REG", "STACK"))
    instructions = Counter(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+(?:\.EX2)?)", sass, re.MULTILINE))
    counts = {what: sum(instructions[name] for name in names) for what, names in _COUNTED.items()}
    return registers, stack, {what: count for what, count in counts.items() if count}


def nvidia_tool(name: str, *arguments: str) -> str:
    """What a tool of Triton's own wheel prints."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout
