"""doit reads this file: it declares the tasks and decides nothing. Try `doit list` and `doit build`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.upkeep.doctor.entry import first

ROOT = Path(__file__).resolve().parent

with first(ROOT, sys.argv[1:]):  # `doit doctor` runs here, before what it may find to be broken
    from pipeline.upkeep.nothing_to_do import leave_if_done

    leave_if_done(ROOT, sys.argv)

    from doit.task import Task

    from pipeline.tasks import Command, declare

    PROJECT, DOIT_CONFIG = declare(ROOT)


def task_build() -> Iterator[Task]:
    yield from PROJECT.build_tasks()


globals().update(PROJECT.stage_creators())  # `fetch`, `ingest` and so on: a task for each stage, and for each step


def task_buckets() -> Iterator[Task]:
    yield from PROJECT.bucket_tasks()


def task_package() -> Iterator[Task]:
    yield from PROJECT.package_tasks()


def task_commands() -> Iterator[Task]:
    yield from PROJECT.command_tasks()


def task_check() -> Command:
    """Run all static checks: format, lint, types, import directions."""
    checks = ["ruff format --check", "ruff check", "mypy", "lint-imports", "python -m pipeline.config.docs --check"]
    return {"actions": checks, "verbosity": 2}
