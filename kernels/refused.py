"""What a request that cannot work is answered with. Pure."""

from __future__ import annotations

from kernels.problem import TileConfig


class Refused(ValueError):
    """A request that cannot work, said in one sentence before anything is launched.

    needs and has are in `unit`; cure is the nearest tile configuration that works, where one was found.
    """

    def __init__(
        self,
        sentence: str,
        needs: float | None = None,
        has: float | None = None,
        unit: str = "",
        cure: TileConfig | None = None,
    ) -> None:
        super().__init__(sentence)
        self.sentence, self.needs, self.has, self.unit, self.cure = sentence, needs, has, unit, cure
