"""What ptxas made of a kernel, as instructions."""

import re
import subprocess
import tempfile
from pathlib import Path

import triton


def instructions(cubin: bytes) -> list[tuple[int, str]]:
    """Of every function of a cubin: (address, text without its predicate)."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        sass = subprocess.run([tool, "--dump-sass", file.name], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?\s*([^;]*?)\s*;", sass, re.MULTILINE)
    return [(int(address, 16), text) for address, text in found]


def loops(code: list[tuple[int, str]]) -> list[list[str]]:
    """What lies between a backward jump and where it goes: innermost loops first."""
    jumps = [(int(text.split()[-1], 16), address) for address, text in code if re.match(r"BRA 0x", text)]
    return sorted(
        ([text for address, text in code if first <= address <= last] for first, last in jumps if first < last), key=len
    )
