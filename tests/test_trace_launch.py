"""A traced variant that does not fit with the version's stages runs with fewer, and says so."""

from __future__ import annotations

import pytest
import torch
from triton.runtime.errors import OutOfResources

from kernels.architecture import ARCHITECTURES
from kernels.launch import CompileOnly
from kernels.problem import AttentionProblem, Precision, TileConfig
from kernels.registry import default_tiles, load
from kernels.trace import TraceBuffers
from profiling.records import RunRequest
from profiling.tile_trace import Subject, launch_traced

LONG = AttentionProblem(seq_len_q=16384, seq_len_kv=16384, head_dim=128)
HOPPER = ARCHITECTURES[90]


class Fits:
    """A version that has room for `most` stages."""

    def __init__(self, most: int) -> None:
        self.most, self.tried = most, []

    def forward(self, operands, problem, tiles, launch, trace):
        self.tried.append(tiles.num_stages)
        if tiles.num_stages > self.most:
            raise OutOfResources(294_912, 232_448, "shared memory")


def subject(kernel: object, tiles: TileConfig, launch: object = None, operands: object = None) -> Subject:
    request = RunRequest(kernel="v2", problem=LONG, tiles=tiles)
    return Subject(request, tiles, kernel, launch, operands, ())


@pytest.mark.parametrize(("most", "tried"), [(3, [3]), (2, [3, 2]), (1, [3, 2, 1])])
def test_stages_are_given_up_one_by_one(most, tried):
    kernel = Fits(most)
    assert launch_traced(subject(kernel, TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=3)), None) == most
    assert kernel.tried == tried


def test_what_does_not_fit_at_all_is_said():
    with pytest.raises(OutOfResources):
        launch_traced(subject(Fits(0), TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2)), None)


class Limited(CompileOnly):
    """Compiles, and refuses what the GPU's driver would refuse."""

    def __call__(self, kernel, grid, *args, **options):
        super().__call__(kernel, grid, *args, **options)
        shared = self.compiled[kernel.__name__].metadata.shared
        if shared > HOPPER.shared_memory_per_block_bytes:
            raise OutOfResources(shared, HOPPER.shared_memory_per_block_bytes, "shared memory")


@pytest.mark.parametrize("kernel", ["v2", pytest.param("v3", marks=pytest.mark.long)])
def test_the_tiles_of_long_sequences_can_be_traced_on_hopper(kernel):
    tiles = default_tiles(kernel, LONG, Precision(), HOPPER)
    assert (tiles.block_m, tiles.block_n) == (128, 128)
    q = torch.empty((1, 16, 16384, 128), dtype=torch.bfloat16, device="meta")
    buffers = TraceBuffers.on("meta", LONG, tiles, batch_index=0, head=0, query_block=0, stored=4)
    launch = Limited(90)
    traced = subject(load(kernel), tiles, launch, load(kernel).prepare(q, q, q, Precision(), launch))
    assert 1 <= launch_traced(traced, buffers) < tiles.num_stages
