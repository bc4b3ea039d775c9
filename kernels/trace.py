"""What the traced variant of a version stores: the tiles of one query block, and which rows' maxima rose in a whole head.

The variant is the same source compiled with TRACE: only `if TRACE:` blocks are added, so that without it the machine code
is what it would be had they never been written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.problem import AttentionProblem, TileConfig

Factor = float | torch.Tensor
# Of a tile's rows where m may lag: m after it, the tile's own largest score, and 1 where O was multiplied by alpha.
MAXIMA = 3


@triton.jit
def store_tile(trace, first_key, seq_len_q, seq_len_kv, scores, m_before, m, l, alpha, acc):  # noqa: E741  the field's name
    """Store a visited tile, if its head and query block are the chosen ones, and how many rows' maxima rose at it.

    trace is (TraceBuffers.arguments, this program's batch · head, its query block). Everything is stored in the units in
    which the version holds it.
    """
    buffers, head, block = trace
    frames_ptr, rises_ptr, choice_ptr, _ = buffers
    BLOCK_M: tl.constexpr = scores.shape[0]
    BLOCK_N: tl.constexpr = scores.shape[1]
    PADDED_DIM: tl.constexpr = acc.shape[1]
    key_block = first_key // BLOCK_N
    every = tl.load(choice_ptr + 2)
    in_block = tl.arange(0, BLOCK_M)
    if head == tl.load(choice_ptr):
        if rises_ptr is not None:
            rose = (m > m_before) & (block * BLOCK_M + in_block < seq_len_q)
            place = rises_ptr + block * tl.cdiv(seq_len_kv, BLOCK_N) + key_block
            # From -1; added in memory, as Triton 3.7 cannot compile a sum to a scalar here for sm_100.
            tl.atomic_add(place + in_block * 0, rose.to(tl.int32) + (in_block == 0).to(tl.int32))
        if (block == tl.load(choice_ptr + 1)) & (key_block % every == tl.load(choice_ptr + 3)):
            keys = tl.arange(0, BLOCK_N)
            dims = tl.arange(0, PADDED_DIM)
            frame = frames_ptr + (key_block // every) * (BLOCK_M * (BLOCK_N + 3 + PADDED_DIM))
            tl.store(frame + in_block[:, None] * BLOCK_N + keys[None, :], scores)
            tl.store(frame + BLOCK_M * BLOCK_N + in_block, m)
            tl.store(frame + BLOCK_M * (BLOCK_N + 1) + in_block, l)
            tl.store(frame + BLOCK_M * (BLOCK_N + 2) + in_block, alpha)
            tl.store(frame + BLOCK_M * (BLOCK_N + 3) + in_block[:, None] * PADDED_DIM + dims[None, :], acc)


@dataclass(frozen=True)
class Frames:
    """The stored tiles in natural units, float32 on the CPU; a row past seq_len_q is as one that sees nothing.

    scores (T, BLOCK_M, BLOCK_N), with sm_scale, -inf where hidden, columns in the order of the tokens; m, l, alpha
    (T, BLOCK_M); acc (T, BLOCK_M, head_dim), as the version holds it. rises (query blocks, key blocks), int32, -1 where
    the kernel never went; None where it was not asked for. The tiles are in the order visited.
    maxima (visited, 3, BLOCK_M), of a version whose m may lag, else None: at every visited tile, stored or not, m after it, the
    tile's own largest score, and 1 where O was multiplied; as the kernel held them, in log2, rows past seq_len_q included.
    """

    scores: torch.Tensor
    m: torch.Tensor
    l: torch.Tensor  # noqa: E741
    alpha: torch.Tensor
    acc: torch.Tensor
    rises: torch.Tensor | None
    maxima: torch.Tensor | None = None


@dataclass(frozen=True)
class TraceBuffers:
    """Where a traced launch stores what it does; forward() takes it, and the version's frames() reads it.

    The chosen query block's tiles are stored if their key block is `first` modulo `every`. Allocate with on().
    """

    problem: AttentionProblem
    tiles: TileConfig
    batch_index: int
    head: int
    query_block: int
    frames: torch.Tensor
    rises: torch.Tensor | None
    choice: torch.Tensor
    maxima: torch.Tensor | None = None

    @staticmethod
    def on(
        device: torch.device | str, problem: AttentionProblem, tiles: TileConfig, *, batch_index: int, head: int,
        query_block: int, stored: int, every: int = 1, first: int = 0, with_rises: bool = True,
        with_maxima: bool = False,
    ) -> TraceBuffers:  # fmt: skip
        """Buffers for `stored` tiles; frames starts as NaN, so that what no program stored cannot pass for a result.

        with_maxima: for a version whose m may lag.
        """
        floats = tiles.block_m * (tiles.block_n + 3 + problem.padded_head_dim)
        blocks = (triton.cdiv(problem.seq_len_q, tiles.block_m), triton.cdiv(problem.seq_len_kv, tiles.block_n))
        # In memory, not among the arguments: Triton compiles anew for an argument that is 1 or a multiple of 16.
        choice = torch.tensor([batch_index * problem.num_heads + head, query_block, every, first], dtype=torch.int32)
        return TraceBuffers(
            problem, tiles, batch_index, head, query_block,
            frames=torch.full((stored, floats), float("nan"), dtype=torch.float32, device=device),
            rises=torch.full(blocks, -1, dtype=torch.int32, device=device) if with_rises else None,
            choice=choice.to(device),
            maxima=torch.full((blocks[1], MAXIMA, tiles.block_m), float("nan"), device=device) if with_maxima else None,
        )  # fmt: skip

    @property
    def arguments(self) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        """What a kernel takes as `trace`."""
        return self.frames, self.rises, self.choice, self.maxima

    @property
    def rows(self) -> slice:
        """The chosen block's rows of its head."""
        first = self.query_block * self.tiles.block_m
        return slice(first, min(first + self.tiles.block_m, self.problem.seq_len_q))

    @property
    def kv_head(self) -> int:
        """Which key-value head the chosen head reads."""
        return self.head // (self.problem.num_heads // self.problem.num_kv_heads)

    def read(
        self, scores: Factor, m: float, l: float, acc: Factor, columns: torch.Tensor | None = None, last_first: bool = False,  # noqa: E741
    ) -> Frames:  # fmt: skip
        """The frames, each quantity times the factor that makes its unit the natural one.

        columns: of which token, counted in its tile, each stored column of the scores is; None where they are in order.
        last_first: whether the version goes through the key blocks from the last one down.
        """
        block_m, block_n = self.tiles.block_m, self.tiles.block_n
        sizes = [block_m * block_n, block_m, block_m, block_m, block_m * self.problem.padded_head_dim]
        stored = self.frames.cpu()
        found = (stored.flip(0) if last_first else stored).split(sizes, dim=1)
        stored_scores = found[0].unflatten(1, (block_m, block_n)) * scores
        if columns is not None:
            stored_scores = stored_scores[..., torch.argsort(columns)]
        past_end = torch.arange(block_m) >= self.rows.stop - self.rows.start
        return Frames(
            scores=stored_scores.masked_fill(past_end[:, None], float("-inf")),
            m=(found[1] * m).masked_fill(past_end, float("-inf")),
            l=(found[2] * l).masked_fill(past_end, 0.0),
            alpha=found[3].masked_fill(past_end, 0.0),
            acc=(found[4].unflatten(1, (block_m, -1))[..., : self.problem.head_dim] * acc).masked_fill(past_end[:, None], 0.0),
            rises=None if self.rises is None else self.rises.cpu(),
            maxima=None if self.maxima is None else self._visited_maxima(last_first),
        )

    def _visited_maxima(self, last_first: bool) -> torch.Tensor:
        maxima = self.maxima.cpu()
        found = maxima[~maxima.isnan().flatten(1).all(1)]
        return found.flip(0) if last_first else found
