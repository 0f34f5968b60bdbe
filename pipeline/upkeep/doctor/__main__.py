"""`python -m pipeline.doctor [--json]`: the doctor without doit."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.doctor.entry import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent.parent, sys.argv[1:]))
