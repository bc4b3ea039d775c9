"""Two ways to launch a Triton kernel: on the GPU (or the interpreter), or no further than the compiler."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import interpreter

from kernels.architecture import architecture


def _mend_interpreted_loop_bounds() -> None:
    """Triton 3.6's interpreter makes a computed loop bound an int in a way that NumPy 2.4 refuses; 3.7 has mended it."""
    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def _patch_the_language_once_a_launch() -> None:
    """Triton's interpreter patches triton.language again at every call of a device function: a third of its time."""
    original = interpreter._patch_lang

    def patch(fn: Any) -> Any:
        languages = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if languages and not any(tl.core.is_builtin(language.load) for language in languages):
            return interpreter._LangPatchScope()
        return original(fn)

    interpreter._patch_lang = patch


if triton.__version__.startswith("3.6."):
    _mend_interpreted_loop_bounds()
if hasattr(interpreter, "_patch_lang") and hasattr(interpreter, "_LangPatchScope"):
    _patch_the_language_once_a_launch()


class Launch:
    """Launch for real: on the GPU, or in the interpreter."""

    def __init__(self, has_tma: bool | None = None) -> None:
        self.has_tma = _local_gpu_has_tma() if has_tma is None else has_tma

    def __call__(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        kernel[grid](*args, **options)


class CompileOnly:
    """Compile exactly what a real launch of the same arguments would, for any GPU, on a machine that has none.

    The tensors may be on torch's meta device: their addresses then count as aligned, as fresh allocations are.
    """

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.has_tma = architecture(capability).tma
        self.compiled: dict[str, Any] = {}

    def __call__(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        with _compiling_for(self.capability):
            self.compiled[kernel.__name__] = kernel.warmup(*args, grid=grid, **options)


def _local_gpu_has_tma() -> bool:
    """The interpreter, where there is no GPU to ask, serves descriptors too."""
    if not torch.cuda.is_available():
        return True
    major, minor = torch.cuda.get_device_capability()
    return architecture(major * 10 + minor).tma


class _TargetOnly:
    """The part of a Triton driver that compiling asks for. A target is a device of its own, so that caches do not mix."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return 1000 + self._capability

    def get_current_stream(self, _device: int) -> int:
        return 0


@contextmanager
def _compiling_for(capability: int):
    driver = triton.runtime.driver
    before = driver._active  # no public way to ask without creating a driver, which fails where there is no GPU
    driver.set_active(_TargetOnly(capability))
    try:
        yield
    finally:
        driver.set_active(before)
