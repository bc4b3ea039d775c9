"""Occupancy by hand against CUDA's rules, and what is read off a cubin against what the source says."""

import pytest

from kernels.architecture import ARCHITECTURES
from kernels.problem import AttentionProblem, TileConfig
from profiling.compile_report import compile_reports, occupancy
from profiling.records import RunRequest

KIB = 1024


@pytest.mark.parametrize(
    ("capability", "registers", "warps", "shared_bytes", "programs", "limited_by"),
    [
        (90, 168, 4, 74752, 3, "registers"),  # 168 · 32 = 5,376 = 21 · 256 a warp; 65,536 / 21,504 = 3.05
        (90, 129, 8, 16 * KIB, 1, "registers"),  # 129 is handed out as 136: 34,816 a program
        (90, 128, 8, 16 * KIB, 2, "registers"),
        (90, 129, 1, 1 * KIB, 12, "registers"),  # each of four schedulers has 16,384: room for 3 warps of 4,352
        (90, 32, 4, 100 * KIB, 2, "shared memory"),  # 228 / 101
        (90, 32, 4, 1 * KIB, 16, "registers"),
        (90, 32, 8, 1 * KIB, 8, "registers"),
        (86, 40, 16, 1 * KIB, 3, "registers"),
        (89, 32, 1, 1 * KIB, 24, "blocks"),
        (89, 32, 16, 1 * KIB, 3, "warps"),
        (90, 255, 8, 228 * KIB, 0, "does not fit"),
        (120, 255, 4, 100 * KIB, 0, "does not fit"),
    ],
)
def test_occupancy(capability, registers, warps, shared_bytes, programs, limited_by):
    assert occupancy(ARCHITECTURES[capability], registers, warps, shared_bytes) == (programs, limited_by)


def test_native_has_no_kernels_of_ours():
    problem = AttentionProblem(seq_len_q=64, seq_len_kv=64)
    assert compile_reports(RunRequest(kernel="native", problem=problem), 90) == ()


def test_a_report_counts_what_the_source_does():
    problem = AttentionProblem(seq_len_q=4096, seq_len_kv=4096, head_dim=64)
    tiles = TileConfig(block_m=64, block_n=64, num_warps=4, num_stages=2)
    (report,) = compile_reports(RunRequest(kernel="v2", problem=problem, tiles=tiles), 90)
    # Q, and two stages of K and of V, 64 × 64 bf16 each; three barriers and the like come on top.
    assert 5 * 64 * 64 * 2 <= report.shared_memory_bytes <= 5 * 64 * 64 * 2 + KIB
    # Two loops; 64 × 64 weights over 128 threads, and a row's alpha: a thread has two rows, in groups of four threads.
    assert report.counts["exp2"] == 2 * (64 * 64 // 128 + 2)
    assert report.warps_per_program == 4
    assert report.capability == 90


def test_a_spill_is_seen():
    problem = AttentionProblem(seq_len_q=4096, seq_len_kv=4096, head_dim=256)
    tiles = TileConfig(block_m=128, block_n=16, num_warps=4, num_stages=1)
    (report,) = compile_reports(RunRequest(kernel="v2", problem=problem, tiles=tiles), 90)
    assert report.spill_bytes > 0
    assert report.counts["spill loads and stores"] > 0
