"""What a command line of doit says, read once and before doit does. Needs the standard library alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.frozen import dataclass

# Those of doit 0.37, https://pydoit.org/cmd-run.html and cmd-other.html; of the others a value is part of the word.
_OPTIONS_WITH_VALUE = frozenset(
    {
        *("-n", "-f", "-d", "-o", "-r", "-P", "-v", "--process", "--file", "--dir", "--output-file", "--reporter"),
        *("--parallel-type", "--verbosity", "--db-file", "--backend", "--failure-verbosity", "--check_file_uptodate"),
    }
)
WHERE = "command line"
"""Where an error lies that the command line alone makes: nothing of the project was looked at for it."""
_COMMANDS = frozenset(
    {"clean", "dumpdb", "forget", "help", "ignore", "info", "list", "reset-dep", "run", "strace", "tabcompletion"}
)

BUILD_HELP = """
MODEL is the name of a file in configs/; without one, all models are built but those with 'on_request: true'. models=A,B
and targets=A,B build only these. What is current is not made again, and what fails holds back only what stands on it.
Contexts, manifests and report.html are in artifacts/MODEL/; of a component that misses a threshold nothing is shipped.

  -n STEPS         steps at a time; as many as there are cores and memory for, when left out
  --no-continue    stop at the first failure
  engine=ADDRESS   make the steps on a cluster: docs/cluster.md

Exit code: 0 all is built, 10 a config is wrong, 16 a threshold is missed, 19 a step waits for another host;
docs/troubleshooting.md has the others. An example: uv run doit -n 4 build:demo targets=sm8650"""
"""What `doit help build` says below its first line."""


@dataclass(frozen=True)
class CommandLine:
    """A command of doit, `run` where none is named; the tasks and what else is named; `rest`, all after the first name.

    `variables` are what is given as `name=value`, `options` what begins with a dash. `asks_for_help`: nothing is done
    but to print some.
    """

    command: str
    names: Sequence[str]
    rest: Sequence[str]
    variables: Mapping[str, str]
    options: Sequence[str]
    asks_for_help: bool


def parse(arguments: Sequence[str]) -> CommandLine:
    """What the arguments of doit say, its own name not among them."""
    words: list[tuple[int, str]] = []
    variables: dict[str, str] = {}
    value_comes = False
    options = [argument for argument in arguments if argument.startswith("-")]
    for position, argument in enumerate(arguments):
        if value_comes or argument.startswith("-"):
            value_comes = not value_comes and argument in _OPTIONS_WITH_VALUE
        elif "=" in argument:
            name, _, variables[name] = argument.partition("=")
        else:
            words.append((position, argument))
    command = words.pop(0)[1] if words and words[0][1] in _COMMANDS else "run"
    rest = arguments[words[0][0] + 1 :] if words else ()
    asks_for_help = any(argument in ("--help", "--version", "-h") for argument in arguments)
    return CommandLine(command, [word for _, word in words], rest, variables, options, asks_for_help)
