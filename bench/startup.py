"""How long `doit list` and a build with nothing to do take: `uv run python bench/startup.py [RUNS]`.

Prints the median of whole processes on the demo, which must have been built, beside that of an empty interpreter, in
turns, so that a drift of the machine's speed shows in all of them.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "doit list": ["-m", "doit", "list"],
    "doit build:demo, nothing to do": ["-m", "doit", "build:demo"],
}


def main(runs: int) -> None:
    """Print a median and a ratio to the empty interpreter for each command."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs + 1):
        for name, arguments in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}
    base = medians["python -c pass"]
    for name, median in medians.items():
        print(f"{name:32} {median:6.3f} s  {median / base:5.1f}x  ({runs} runs)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
