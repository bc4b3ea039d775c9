"""What a host of a cluster is said to have, for tests of a cluster on a machine without GPUs."""

from __future__ import annotations

import os

from profiling.devices import interpreter_facts
from profiling.records import DeviceFacts

VARIABLE = "FLASHSCOPE_TEST_GPUS"


def described() -> tuple[DeviceFacts, ...]:
    """The GPUs that the variable names, as 'GPU-1=NVIDIA H200,GPU-2=NVIDIA H200' in NVML's order, then the interpreter."""
    listed = [one.split("=") for one in os.environ.get(VARIABLE, "").split(",") if one]
    gpus = (DeviceFacts(id=uuid, kind="gpu", name=name, capability=90) for uuid, name in listed)
    return (*gpus, interpreter_facts("No GPU was found: this is a test."))
