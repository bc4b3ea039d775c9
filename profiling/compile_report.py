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
from kernels.kernel import TORCH_DTYPES
from kernels.registry import Refused, default_tiles, load, refuse, version
from profiling.records import CompileReport, RunRequest

_REGISTERS_ARE_HANDED_OUT_BY = 256
_SHARED_MEMORY_RESERVED_BYTES = 1024
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
    """Compile every Triton kernel of the request for a capability, launching none; the attention itself comes last.

    Raises Refused when the attention does not fit in the GPU's shared memory, and what Triton raises when it cannot
    compile. Must run where TRITON_INTERPRET is not set. Versions without Triton
    kernels of ours (native, peers) give an empty tuple.
    """
    if not version(request.kernel).has_tiles:
        return ()
    arch = architecture(capability)
    tiles = request.tiles or default_tiles(request.kernel, request.problem, request.precision, arch)
    refuse(request.kernel, request.problem, request.precision, tiles, arch)
    reports = _compiled(request.model_copy(update={"tiles": tiles}), arch)
    needs_bytes, has_bytes = reports[-1].shared_memory_bytes, arch.shared_memory_per_block_bytes
    if needs_bytes > has_bytes:
        raise Refused(
            f"BLOCK_N = {tiles.block_n} does not fit: with BLOCK_M = {tiles.block_m} and {tiles.num_stages} stages it "
            f"needs {needs_bytes / 1024:.0f} KiB of shared memory, and one program on sm_{capability} gets "
            f"{has_bytes / 1024:.0f} KiB.",
            needs=needs_bytes, has=has_bytes, unit="bytes",
        )  # fmt: skip
    return reports


def stamped_programs_per_sm(request: RunRequest, capability: int) -> int:
    """How many programs of a version's stamped variant (kernels.stamps) fit on one SM at once; request.tiles must be there."""
    return _compiled(request, architecture(capability), stamped=True)[-1].programs_per_sm


def _compiled(request: RunRequest, arch: Architecture, stamped: bool = False) -> tuple[CompileReport, ...]:
    import torch

    from kernels.launch import CompileOnly
    from kernels.stamps import StampBuffers

    kernel, problem, launch = load(request.kernel), request.problem, CompileOnly(arch.capability)
    dtype = TORCH_DTYPES[request.precision.dtype]
    q, k, v = (
        torch.empty((problem.batch, heads, seq_len, problem.head_dim), dtype=dtype, device="meta")
        for heads, seq_len in (
            (problem.num_heads, problem.seq_len_q),
            (problem.num_kv_heads, problem.seq_len_kv),
            (problem.num_kv_heads, problem.seq_len_kv),
        )
    )
    watched = {"stamps": StampBuffers.on("meta", problem, request.tiles)} if stamped else {}
    started = time.perf_counter()
    kernel.forward(kernel.prepare(q, k, v, request.precision, launch), problem, request.tiles, launch, **watched)
    compile_ms = (time.perf_counter() - started) * 1e3
    return tuple(report_of(name, compiled, arch, compile_ms) for name, compiled in launch.compiled.items())


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


def occupancy(arch: Architecture, registers: int, warps: int, shared_bytes: int) -> tuple[int, str]:
    """(programs that fit on one SM at once, what keeps one more off), as CUDA's occupancy calculator counts.

    Registers are handed out to a warp in units of 256; every program takes 1 KiB of shared memory beyond its own.
    """
    registers_a_warp = -(-registers * 32 // _REGISTERS_ARE_HANDED_OUT_BY) * _REGISTERS_ARE_HANDED_OUT_BY
    room = {
        "registers": arch.registers_per_sm // (registers_a_warp * warps),
        "shared memory": arch.shared_memory_per_sm_bytes // (shared_bytes + _SHARED_MEMORY_RESERVED_BYTES),
        "warps": arch.max_warps_per_sm // warps,
        "blocks": arch.max_blocks_per_sm,
    }
    if shared_bytes > arch.shared_memory_per_block_bytes or min(room.values()) == 0:
        return 0, "does not fit"
    limited_by = min(room, key=lambda resource: room[resource])
    return room[limited_by], limited_by


@lru_cache(maxsize=64)
def read_cubin(cubin: bytes) -> tuple[int, int, dict[str, int]]:
    """(registers a thread, bytes of stack a thread, counts of SASS instructions), by the tools in Triton's own wheel.

    These kernels keep nothing on the stack but what did not fit in registers, so the stack is the spill.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _nvidia_tool("cuobjdump", "--dump-resource-usage", file.name)
        sass = _nvidia_tool("nvdisasm", "--print-code", file.name)
    registers, stack = (int(re.search(rf"{field}:(\d+)", usage).group(1)) for field in ("REG", "STACK"))
    instructions = Counter(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+(?:\.EX2)?)", sass, re.MULTILINE))
    counts = {what: sum(instructions[name] for name in names) for what, names in _COUNTED.items()}
    return registers, stack, {what: count for what, count in counts.items() if count}


def _nvidia_tool(name: str, *arguments: str) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout
