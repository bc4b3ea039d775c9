"""What one SM of each compute capability offers: the limits a tile must fit. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """Limits of one compute capability (CUDA C++ Programming Guide, table of technical specifications).

    capability is major · 10 + minor; shared_memory_per_block_bytes is the opt-in limit; fp8 says whether the matrix
    units take e4m3, tma whether tiles come through the tensor copy engine.
    """

    capability: int
    name: str
    example: str
    shared_memory_per_block_bytes: int
    shared_memory_per_sm_bytes: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int = 65536
    max_registers_per_thread: int = 255

    @property
    def fp8(self) -> bool:
        """Whether the matrix units take e4m3 operands (Ada, sm_89, and later)."""
        return self.capability >= 89

    @property
    def tma(self) -> bool:
        """Whether tiles come best through the tensor copy engine: on Hopper and data-centre Blackwell.

        sm_120 has the engine too, but tiles that come through it are compiled with spills where those by address are not.
        """
        return 90 <= self.capability < 120


_KIB = 1024
ARCHITECTURES = {
    arch.capability: arch
    for arch in (
        Architecture(80, "Ampere", "A100", 163 * _KIB, 164 * _KIB, 64, 32),
        Architecture(86, "Ampere", "RTX 3090", 99 * _KIB, 100 * _KIB, 48, 16),
        Architecture(89, "Ada", "RTX 4090", 99 * _KIB, 100 * _KIB, 48, 24),
        Architecture(90, "Hopper", "H100, H200", 227 * _KIB, 228 * _KIB, 64, 32),
        Architecture(100, "Blackwell", "B200", 227 * _KIB, 228 * _KIB, 64, 32),
        Architecture(120, "Blackwell", "RTX 5090", 99 * _KIB, 100 * _KIB, 48, 24),
    )
}


def architecture(capability: int) -> Architecture:
    """The limits of a capability, or of the nearest older one when it is unknown.

    Raises ValueError below sm_80: the kernels need bf16 matrix units.
    """
    known = [have for have in ARCHITECTURES if have <= capability]
    if not known:
        raise ValueError(f"sm_{capability} is not supported: the kernels need bf16 matrix units, sm_80 (Ampere) or later.")
    return ARCHITECTURES[max(known)]
