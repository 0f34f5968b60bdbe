"""`python -m pipeline.upkeep.doctor [--json]`: the doctor without doit."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.upkeep.doctor.entry import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[3], sys.argv[1:]))
