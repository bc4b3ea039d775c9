"""Problems worth running, as values of the form. A preset leaves tiles and device as they are by default. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A name for a pill, where the configuration comes from, and the form's fields it sets."""

    label: str
    source: str
    values: dict[str, str | bool]


def _problem(seq_len: int, heads: int, kv_heads: int, head_dim: int, causal: bool) -> dict[str, str | bool]:
    return {
        "seq_len": str(seq_len),
        "seq_len_kv": "same",
        "num_heads": str(heads),
        "num_kv_heads": str(kv_heads),
        "batch": "1",
        "head_dim": str(head_dim),
        "causal": causal,
        "dtype": "bf16",
    }


PRESETS: dict[str, Preset] = {
    preset.label: preset
    for preset in (
        Preset("Tiny", "A few tiles: seconds in the interpreter.", _problem(256, 2, 2, 64, True)),
        Preset(
            "Article 1k",
            "The article's configuration: d_model 512 in 16 heads, 1,024 tokens.",
            _problem(1024, 16, 16, 32, False),
        ),
        Preset(
            "Article 16k",
            "The article's configuration: d_model 512 in 16 heads, 16,384 tokens.",
            _problem(16384, 16, 16, 32, False),
        ),
        Preset(
            "FA3 paper",
            "Shah et al. 2024, arXiv 2407.08608, section 4.1: 16k tokens, hidden size 2048.",
            _problem(16384, 16, 16, 128, True),
        ),
        Preset(
            "Llama 3 8B",
            "A prefill of Llama 3 8B: 32 heads over 8, head_dim 128, 8,192 tokens.",
            _problem(8192, 32, 8, 128, True),
        ),
    )
}
FIRST_ON_A_GPU = "FA3 paper"


def matching(values: dict[str, str | bool]) -> str | None:
    """The preset whose fields the form shows, or None."""
    return next(
        (name for name, preset in PRESETS.items() if all(values.get(field) == value for field, value in preset.values.items())),
        None,
    )
