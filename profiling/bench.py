"""What a job needs of the device it runs on; GpuBench and InterpreterBench fulfil it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from kernels.architecture import Architecture
from kernels.kernel import TORCH_DTYPES, AttentionOutput, Gradients
from profiling.case import Case, Inputs
from profiling.record_types import Provenance
from profiling.records import Environment, Phase, PhaseSpan, Timeline
from profiling.teaching_inputs import shaped
from profiling.tile_trace import Subject

Say = Callable[[Phase, str, int, int], None]
"""say(phase, text, done, total): progress for the page."""
_DRAWN_ON_CPU = 1 << 24
_SEED_OF_D_OUT = 0x5EED


class Bench(Protocol):
    """A device with its instruments. All methods may raise what the kernels raise."""

    environment: Environment
    device: torch.device
    provenance: Provenance
    arch: Architecture | None

    def begin_job(self) -> None:
        """Look at the device before anything of the job runs on it, and start the instruments."""

    def end_job(self) -> None:
        """Stop the instruments."""

    def refuse_if_too_large(self, case: Case) -> None:
        """Raise Refused when the request needs more memory than there is."""

    def begin_case(self, case: Case) -> None:
        """Start what can go on beside the rest."""

    def first_run(self, case: Case, say: Say) -> AttentionOutput:
        """The first launch, finished. On the interpreter it is the only one, and its time is kept."""

    def first_backward(self, case: Case, say: Say) -> Gradients:
        """The first launch of the backward, of the output that is kept; finished, and timed, as the forward's."""

    def tidy(self) -> None:
        """Give back memory that is only cached: what is allocated next must not pin a large block of an earlier kernel."""

    def time(self, cases: Sequence[Case], inputs_of: Callable[[Case], Inputs], say: Say) -> None:
        """Time the cases that are right, interleaved."""

    def take_memory(self, case: Case) -> None:
        """What one launch allocates."""

    def observe(self, case: Case) -> None:
        """Launch for a while under the sampler's eyes, untimed."""

    def take_energy(self, case: Case, say: Say) -> None:
        """What a launch takes from the supply. Raises ValueError, in one sentence, where that cannot be seen."""

    def take_schedule(self, case: Case, subject: Subject, say: Say) -> None:
        """Who runs where and when. Raises ValueError, in one sentence, where that cannot be seen."""

    def report_compiler(self, case: Case) -> None:
        """What the compiler made of the kernel."""

    def sample(self, on: bool) -> None:
        """Let the sampler read, or make it pause."""

    def timeline(self, start: float, spans: tuple[PhaseSpan, ...]) -> Timeline | None:
        """What was sampled since start."""


def draw_inputs(case: Case, device: torch.device) -> Inputs:
    """q, k and v of the request's kind, in its dtype: its own, or drawn, on the CPU when small, so that a seed fixes them."""
    problem, dtype = case.problem, TORCH_DTYPES[case.precision.dtype]
    own = case.request.own
    if own is not None:
        return tuple(torch.tensor(array.numpy()).to(dtype).to(device) for array in (own.q, own.k, own.v))
    query = (problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim)
    key = (problem.batch, problem.num_kv_heads, problem.seq_len_kv, problem.head_dim)
    elements = torch.Size(query).numel() + 2 * torch.Size(key).numel()
    drawn_on = torch.device("cpu") if elements <= _DRAWN_ON_CPU else device
    generator = torch.Generator(drawn_on).manual_seed(case.request.seed)

    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=drawn_on, dtype=torch.float32)

    drawn = shaped(case.request.inputs, draw(query), draw(key), draw(key), problem, generator, dtype)
    return tuple(tensor.to(dtype).contiguous().to(device) for tensor in drawn)


def draw_d_out(case: Case, device: torch.device) -> torch.Tensor:
    """What is differentiated is sum(out ∘ d_out): d_out is N(0, 1), in the request's dtype, fixed by its seed as inputs are."""
    problem = case.problem
    shape = torch.Size((problem.batch, problem.num_heads, problem.seq_len_q, problem.head_dim))
    drawn_on = torch.device("cpu") if shape.numel() <= _DRAWN_ON_CPU else device
    generator = torch.Generator(drawn_on).manual_seed(case.request.seed ^ _SEED_OF_D_OUT)
    drawn = torch.randn(shape, generator=generator, device=drawn_on, dtype=torch.float32)
    return drawn.to(TORCH_DTYPES[case.precision.dtype]).to(device)
