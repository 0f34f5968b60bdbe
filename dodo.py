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


def task_fetch() -> Iterator[Task]:
    yield from PROJECT.tasks("fetch")


def task_ingest() -> Iterator[Task]:
    yield from PROJECT.tasks("ingest")


def task_shape() -> Iterator[Task]:
    yield from PROJECT.tasks("shape")


def task_rewrite() -> Iterator[Task]:
    yield from PROJECT.tasks("rewrite")


def task_samples() -> Iterator[Task]:
    yield from PROJECT.tasks("samples")


def task_calibrate() -> Iterator[Task]:
    yield from PROJECT.tasks("calibrate")


def task_correlate() -> Iterator[Task]:
    yield from PROJECT.tasks("correlate")


def task_precision() -> Iterator[Task]:
    yield from PROJECT.tasks("precision")


def task_quantize() -> Iterator[Task]:
    yield from PROJECT.tasks("quantize")


def task_verify() -> Iterator[Task]:
    yield from PROJECT.tasks("verify")


def task_packing() -> Iterator[Task]:
    yield from PROJECT.tasks("packing")


def task_context() -> Iterator[Task]:
    yield from PROJECT.tasks("context")


def task_alone() -> Iterator[Task]:
    yield from PROJECT.tasks("alone")


def task_bundle() -> Iterator[Task]:
    yield from PROJECT.tasks("bundle")


def task_emulate() -> Iterator[Task]:
    yield from PROJECT.tasks("emulate")


def task_export() -> Iterator[Task]:
    yield from PROJECT.tasks("export")


def task_converse() -> Iterator[Task]:
    yield from PROJECT.tasks("converse")


def task_blame() -> Iterator[Task]:
    yield from PROJECT.tasks("blame")


def task_probe() -> Iterator[Task]:
    yield from PROJECT.tasks("probe")


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
