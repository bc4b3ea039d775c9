"""What GPU models can do at most: the dense rates of NVIDIA's data sheets. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuModel:
    """A model's data-sheet peaks, dense (data sheets often print twice as much, 'with sparsity').

    name is how NVML's begins, without 'NVIDIA '. bf16 and FP8 in TFLOP/s with float32 accumulation, FP8 None where the
    matrix units have none; bandwidth in GB/s (10⁹ bytes). source: the document and where in it; sm_count is its count of CUDA
    cores by 128 (A100: by 64).
    """

    name: str
    sm_count: int
    bf16_tflops: float
    fp8_tflops: float | None
    bandwidth_gb_per_s: float
    source: str


_A100 = "NVIDIA A100 data sheet (June 2021), table of specifications: 312 TFLOPS bf16 dense"
_A10 = "NVIDIA A10 data sheet (2021), table of specifications: 125 TFLOPS bf16 dense"
_L4 = "NVIDIA L4 data sheet (2023), table of specifications: sparse rates halved, as its footnote says"
_L40S = "NVIDIA L40S data sheet (2023), table of specifications: the dense one of two figures"
_L40 = "NVIDIA L40 data sheet (2022), table of specifications: the dense one of two figures"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper v2, specification tables: FP32 accumulate, dense"
_RTX_6000_ADA = "NVIDIA RTX 6000 Ada data sheet (2022): 1,457 TFLOPS FP8 sparse, so half dense and a quarter for bf16"
_ADA = "NVIDIA Ada GPU Architecture whitepaper v2, appendix A: FP32 accumulate, dense"
_RTX_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix A: FP32 accumulate, dense"
_H100 = "NVIDIA H100 data sheet (2024), table of specifications: sparse rates halved, as its footnote says"
_H200 = "NVIDIA H200 data sheet (2024), table of specifications: sparse rates halved, as its footnote says"
_GH200 = "NVIDIA GH200 data sheet (2024), table of specifications: sparse rates halved, as its footnote says"
_B200 = "NVIDIA DGX B200 data sheet (2024): 72 PFLOPS FP8 sparse and 64 TB/s for 8 GPUs; a sixteenth, an eighth"

GPU_MODELS = (
    GpuModel("A100-SXM4-40GB", 108, 312.0, None, 1555.0, _A100),
    GpuModel("A100-SXM4-80GB", 108, 312.0, None, 2039.0, _A100),
    GpuModel("A100-PCIE-40GB", 108, 312.0, None, 1555.0, _A100),
    GpuModel("A100 80GB PCIe", 108, 312.0, None, 1935.0, _A100),
    GpuModel("A10", 72, 125.0, None, 600.0, _A10),
    GpuModel("L4", 58, 121.0, 242.5, 300.0, _L4),
    GpuModel("L40S", 142, 362.0, 733.0, 864.0, _L40S),
    GpuModel("L40", 142, 181.0, 362.0, 864.0, _L40),
    GpuModel("RTX A6000", 84, 154.8, None, 768.0, _GA102),
    GpuModel("GeForce RTX 3090", 82, 71.0, None, 936.0, _GA102),
    GpuModel("RTX 6000 Ada Generation", 142, 364.2, 728.5, 960.0, _RTX_6000_ADA),
    GpuModel("GeForce RTX 4090", 128, 165.2, 330.3, 1008.0, _ADA),
    GpuModel("GeForce RTX 5090", 170, 209.5, 419.0, 1792.0, _RTX_BLACKWELL),
    GpuModel("H100 80GB HBM3", 132, 989.5, 1979.0, 3350.0, _H100),
    GpuModel("H100 PCIe", 114, 756.0, 1513.0, 2000.0, "NVIDIA H100 data sheet (2023), column H100 PCIe: sparse rates halved"),
    GpuModel("H100 NVL", 132, 835.5, 1671.0, 3900.0, _H100),
    GpuModel("H200", 132, 989.5, 1979.0, 4800.0, _H200),
    GpuModel("H200 NVL", 132, 835.5, 1671.0, 4800.0, _H200),
    GpuModel("GH200 480GB", 132, 989.5, 1979.0, 4000.0, _GH200),
    GpuModel("GH200 144G HBM3e", 132, 989.5, 1979.0, 4900.0, _GH200),
    GpuModel("B200", 148, 2250.0, 4500.0, 8000.0, _B200),
)
_LONGEST_FIRST = sorted(GPU_MODELS, key=lambda model: len(model.name), reverse=True)

# After the model's name only its memory may follow: 'RTX 4090 D', 'RTX 3090 Ti', 'A10G' and a MIG slice are other models.
_MEMORY = re.compile(r"([ -]\d+ ?GB?)?( HBM\w+)?", re.IGNORECASE)


def model_of(nvml_name: str) -> GpuModel | None:
    """The table's row for a device name as NVML and CUDA give it, or None."""
    name = nvml_name.strip().removeprefix("NVIDIA ")
    for model in _LONGEST_FIRST:
        if name.startswith(model.name):
            return model if _MEMORY.fullmatch(name[len(model.name) :]) else None
    return None
