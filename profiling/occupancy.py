"""How many programs fit on one SM at once, step by step, as CUDA's occupancy calculator counts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.architecture import Architecture

_REGISTERS_ARE_HANDED_OUT_BY = 256
_WARPS_ARE_PLACED_BY = 4
_SHARED_MEMORY_RESERVED_BYTES = 1024


@dataclass(frozen=True)
class Room:
    """What one resource of an SM allows: programs at once, and the calculation in words, a step each."""

    resource: str
    programs: int
    steps: tuple[str, ...]


def room(arch: Architecture, registers: int, warps: int, shared_bytes: int) -> tuple[Room, ...]:
    """What each resource allows a program of so many warps, with so many registers a thread and so much shared memory.

    Registers are handed out to a warp in units of 256, a quarter of them at each of an SM's four schedulers; every program
    takes 1 KiB of shared memory beyond its own (CUDA C++ Programming Guide, technical specifications; CUDA's calculator).
    """
    return _registers(arch, registers, warps), _shared(arch, shared_bytes), _warps(arch, warps), _blocks(arch)


def occupancy(arch: Architecture, registers: int, warps: int, shared_bytes: int) -> tuple[int, str]:
    """(programs that fit on one SM at once, what keeps one more off), or (0, 'does not fit'); see room."""
    found = room(arch, registers, warps, shared_bytes)
    least = min(found, key=lambda one: one.programs)
    if shared_bytes > arch.shared_memory_per_block_bytes or least.programs == 0:
        return 0, "does not fit"
    return least.programs, least.resource


def _registers(arch: Architecture, registers: int, warps: int) -> Room:
    unit = _REGISTERS_ARE_HANDED_OUT_BY
    a_warp = max(1, -(-registers * 32 // unit)) * unit
    fit = arch.registers_per_sm // _WARPS_ARE_PLACED_BY // a_warp * _WARPS_ARE_PLACED_BY
    return Room(
        "registers",
        fit // warps,
        (
            f"{registers} registers × 32 threads, in units of {unit}: {a_warp:,} a warp",
            f"{arch.registers_per_sm:,} registers, a quarter at each of 4 schedulers: room for {fit} warps",
            f"{fit} ÷ {_of(warps, 'warp')} a program = {fit / warps:.3g}",
        ),
    )


def _shared(arch: Architecture, shared_bytes: int) -> Room:
    has, taken = arch.shared_memory_per_sm_bytes, shared_bytes + _SHARED_MEMORY_RESERVED_BYTES
    too_large = shared_bytes > arch.shared_memory_per_block_bytes
    one = (
        f"{shared_bytes / 1024:.4g} KiB a program + 1 KiB that CUDA keeps: {taken / 1024:.4g} KiB",
        f"one program may have {arch.shared_memory_per_block_bytes / 1024:.4g} KiB"
        + (": it does not fit" if too_large else ""),
        f"{has / 1024:.4g} KiB ÷ {taken / 1024:.4g} KiB = {has / taken:.3g}",
    )
    return Room("shared memory", 0 if too_large else has // taken, one)


def _warps(arch: Architecture, warps: int) -> Room:
    most = arch.max_warps_per_sm
    return Room("warps", most // warps, (f"{most} warps ÷ {_of(warps, 'warp')} a program = {most / warps:.3g}",))


def _blocks(arch: Architecture) -> Room:
    return Room("blocks", arch.max_blocks_per_sm, (f"an SM holds {arch.max_blocks_per_sm} programs, however small",))


def _of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
