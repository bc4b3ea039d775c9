"""A kernel that does nothing but read one buffer again and again: what the L2 cache gives, when the buffer fits in it."""

import torch
import triton
import triton.language as tl

_BLOCK = 4096
_PROGRAMS_PER_SM = 4
# Primes, so that every block comes in its turn.
_SCATTER = tl.constexpr(40507)
_STRIDE = tl.constexpr(37)


@triton.jit
def read_again(source, sums, num_blocks, rounds, BLOCK: tl.constexpr):
    """Every program adds up all blocks, `rounds` times, in an order that scatters what programs read at one moment.

    Requests of several SMs for the same lines are merged on their way: an H200 gave 18.9 TB/s when all went through the
    buffer together, 12.6 when each began a block after its neighbour, and 7.6 scattered, which is what the cache itself gives.
    """
    program = tl.program_id(0)
    start = (program * _SCATTER) % num_blocks
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for i in tl.range(0, num_blocks * rounds, loop_unroll_factor=4):
        block = (start + i * _STRIDE) % num_blocks
        # Past the L1 cache, in which two programs of an SM might meet.
        total += tl.load(source + block * BLOCK + lanes, cache_modifier=".cg")
    tl.store(sums + program, tl.sum(total, 0))


class L2Reading:
    """One launch of read_again on a buffer of about buffer_bytes; bytes_per_launch is what all its programs read.

    Called, it launches and does not wait.
    """

    def __init__(self, device: torch.device, sm_count: int, buffer_bytes: int, rounds: int = 2) -> None:
        # One more than a multiple of the stride, which then shares no factor with it.
        self._num_blocks = 1 + max(1, buffer_bytes // (4 * _BLOCK) // _STRIDE.value) * _STRIDE.value
        self._rounds = rounds
        self._programs = _PROGRAMS_PER_SM * sm_count
        self._source = torch.ones(self._num_blocks * _BLOCK, dtype=torch.int32, device=device)
        self.sums = torch.zeros(self._programs, dtype=torch.int32, device=device)

    @property
    def bytes_per_launch(self) -> int:
        """Bytes that all programs read together."""
        return self._programs * self._rounds * self._num_blocks * _BLOCK * 4

    @property
    def is_whole(self) -> bool:
        """Whether the last launch added up the whole buffer in every program, as many times as it should."""
        return bool((self.sums == self._rounds * self._num_blocks * _BLOCK).all())

    def __call__(self) -> None:
        read_again[(self._programs,)](self._source, self.sums, self._num_blocks, self._rounds, BLOCK=_BLOCK, num_warps=8)
