"""What stands behind --kernel: versions, each with settings of its own, as in 'v2,v2@block_m=64,block_n=64'. Pure.

So one job times one version with two settings, in the same rounds: an A/B of tiles, orders or number formats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from kernels.problem import Precision, TileConfig
from kernels.registry import version

_TILES, _PRECISION = TileConfig.model_fields, Precision.model_fields
_YES, _NO = ("yes", "true", "on"), ("no", "false", "off")


@dataclass(frozen=True)
class KernelChoice:
    """A version with what is asked of it alone; tiles and precision hold the fields that were set, and no others."""

    name: str
    tiles: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, Any] = field(default_factory=dict)

    @property
    def spelled(self) -> str:
        """As kernel_choices reads it: 'v2', 'v2@block_m=64,block_n=256'."""
        settings = [f"{name}={_spelled(value)}" for name, value in (*self.tiles.items(), *self.precision.items())]
        return self.name + (f"@{','.join(settings)}" if settings else "")

    @property
    def title(self) -> str:
        """For a column: 'v2', 'v2 64×256·w8·s2', 'v3 FP8'; a peer's own title."""
        entry, tiles = version(self.name), dict(self.tiles)
        sizes = [f"{tiles.pop('block_m')}×{tiles.pop('block_n')}"] if {"block_m", "block_n"} <= set(tiles) else []
        short = {"num_warps": "w", "num_stages": "s"}
        sizes += [f"{short[name]}{value}" if name in short else f"{name}={value}" for name, value in tiles.items()]
        precision = dict(self.precision)
        fp8 = ["FP8"] if precision.pop("fp8", False) else []
        others = [f"{name}={_spelled(value)}" for name, value in precision.items()]
        return " ".join(filter(None, [entry.title if entry.is_peer else self.name, *fp8, "·".join(sizes), *others]))


def kernel_choices(asked: str) -> tuple[KernelChoice, ...]:
    """The versions of a list with commas, each with the settings after its '@', which have commas too; each choice once.

    Raises ValueError, in one sentence, for a version, a setting or a value that is not possible.
    """
    found: list[KernelChoice] = []
    for part in (part.strip() for part in asked.split(",")):
        if "=" in part and "@" not in part:
            if not found:
                raise ValueError(f"kernel = {asked} is not possible: {part} stands before any version.")
            found[-1] = _with(found[-1], part)
            continue
        name, _, setting = part.partition("@")
        if "@" in part and "=" not in setting:
            raise ValueError(f"kernel = {part} is not possible: after @ stands a setting, as in v2@block_m=64,block_n=64.")
        choice = KernelChoice(version(name.strip()).name)
        found.append(_with(choice, setting) if setting else choice)
    return tuple(one for place, one in enumerate(found) if one not in found[:place])


def _with(choice: KernelChoice, setting: str) -> KernelChoice:
    """The choice with one setting more, 'block_m=64' or 'BLOCK_M=64'."""
    name, _, text = setting.partition("=")
    name, text = name.strip().lower(), text.strip()
    fields = _TILES if name in _TILES else _PRECISION
    if name not in fields:
        known = ", ".join((*_TILES, *_PRECISION))
        raise ValueError(f"{choice.name}@{setting} is not possible: a version can be given {known}.")
    if fields is _TILES and not version(choice.name).has_tiles:
        raise ValueError(f"{choice.name}@{setting} is not possible: {choice.name} has no tiles to choose.")
    value = _value(f"{choice.name}@{setting}", text, fields[name].annotation)
    if fields is _TILES:
        return KernelChoice(choice.name, {**choice.tiles, name: value}, choice.precision)
    return KernelChoice(choice.name, choice.tiles, {**choice.precision, name: value})


def _value(whole: str, text: str, kind: Any) -> Any:
    """The text as the field's type; whether the value is possible, the record itself says."""
    if kind is bool:
        if text.lower() not in (*_YES, *_NO):
            raise ValueError(f"{whole} is not possible: it is yes or no.")
        return text.lower() in _YES
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(f"{whole} is not possible: it can be {', '.join(get_args(kind))}.")
        return text
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise ValueError(f"{whole} is not possible: it is a whole number.") from None


def _spelled(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
