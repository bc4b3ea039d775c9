"""One thing that the doctor looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was looked at. cure is empty when it works; runs_kernels: a kernel ran there, and was right."""

    works: bool
    what: str
    cure: str = ""
    runs_kernels: bool = False

    def __str__(self) -> str:
        return f"{'ok' if self.works else 'no'}  {self.what}" + (f"\n    Cure: {self.cure}." if self.cure else "")
