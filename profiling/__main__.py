"""The command line: python -m profiling run | record | doctor."""

from __future__ import annotations

import sys

from profiling.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
