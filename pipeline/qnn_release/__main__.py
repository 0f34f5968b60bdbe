"""The command `qnn-release`: runs, times, checks or serves a release."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import serve
from .contents import Contents
from .errors import ArgumentError, InputError, ReleaseError, spelled
from .fitting import described
from .index import Component, Tensor
from .release import Release, opened

_FAILED = 1


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0, or 1 for a ReleaseError, which is printed. argparse ends the process with 2."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["serve"]:
        return serve.main(given[1:])
    parser = argparse.ArgumentParser(prog="qnn-release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run", help="run a component, on arrays of your own or on a sample of its smallest bucket"
    )
    run.add_argument("--component", help="else the first")
    run.add_argument("--inputs", type=Path, help="an .npz with an array for each input")
    run.add_argument("--outputs", type=Path, help="the .npz to write; else shapes and ranges are printed")
    bench = commands.add_parser("bench", help="time every component in every bucket")
    bench.add_argument("--seconds", type=float, default=3.0, help="to run each for, once it is warm")
    for command in (run, bench):
        serve.add_options(command)
    verify = commands.add_parser("verify", help="hash every file; signatures are checked by 'doit verify-release'")
    verify.add_argument("release", help="the archive or the folder")
    verify.add_argument("--cache", type=Path, help="the folder that archives are unpacked into")
    commands.add_parser("serve", help="serve it on standard input and output, for qnn_release.client")
    asked = parser.parse_args(given)
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        {"run": _run, "bench": _bench, "verify": _verify}[asked.command](asked)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return _FAILED
    return 0


def _run(asked: argparse.Namespace) -> None:
    with _opened_for(asked) as release:
        name = asked.component or next(iter(release.components))
        if name not in release.components:
            raise InputError(
                f"the release has no component {name!r}",
                where=asked.release,
                why=f"it has {', '.join(release.components)}",
            )
        component = release.components[name]
        feed = _read(asked.inputs) if asked.inputs else sample(component, component.buckets[0].axes)
        outputs = release.run(name, feed)
        if asked.outputs:
            _write(asked.outputs, outputs)
        for tensor in component.inputs:
            print(f"{name} takes {described(tensor)}")
        for output, array in outputs.items():
            span = f", {array.min():.6g} to {array.max():.6g}" if array.size else ""
            print(f"{name} gave {output}: {array.dtype} {list(array.shape)}{span}")
        print(release.report())


def _bench(asked: argparse.Namespace) -> None:
    with _opened_for(asked) as release:
        for name, component in release.components.items():
            for number, bucket in enumerate(component.buckets):
                feed, took = sample(component, bucket.axes), list[float]()
                release.load(name, bucket.axes)
                until = time.perf_counter() + asked.seconds
                while len(took) < 2 or time.perf_counter() < until:
                    started = time.perf_counter()
                    release.run(name, feed)
                    took.append((time.perf_counter() - started) * 1e3)
                first, warm = took[0], sorted(took[1:])
                session = next(
                    each
                    for each in release.report().sessions
                    if (each.component, each.axes) == (name, component.buckets[number].axes)
                )
                print(
                    f"{name} at {spelled(bucket.axes)}: {session.provider}, load {session.load_s:.2f} s, first run"
                    f" {first:.2f} ms, median {statistics.median(warm):.2f} ms, 90 % below"
                    f" {warm[max(0, -(-9 * len(warm) // 10) - 1)]:.2f} ms, {len(warm)} runs",
                    flush=True,
                )
        print(f"on {release.report().device}: {release.report().why}")


def _verify(asked: argparse.Namespace) -> None:
    folder, index = opened(Path(asked.release), asked.cache)
    Contents(folder, index).verify(index.files)
    total = sum(file.bytes for file in index.files.values())
    print(f"{index.model} {index.version}: {len(index.files)} files, {total} bytes, all as release.json names them")


def sample(component: Component, axes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Inputs that fill a bucket: the middle of what the build saw, the least id, or else ones."""
    return {tensor.name: _filled(tensor, axes) for tensor in component.inputs}


def _filled(tensor: Tensor, axes: Mapping[str, int]) -> NDArray[Any]:
    value = sum(tensor.seen) / 2 if tensor.seen else tensor.range[0] if tensor.range else 1
    return np.full([dim.at(axes) or 0 for dim in tensor.dims], value, tensor.dtype)


@contextlib.contextmanager
def _opened_for(asked: argparse.Namespace) -> Iterator[Release]:
    """The release, with all that QNN prints sent to standard error while it is open."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with (
            os.fdopen(os.dup(kept), "w", encoding="utf-8") as out,
            contextlib.redirect_stdout(out),
            Release.open(asked.release, **serve.options_of(asked)) as release,
        ):
            yield release
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # numpy and zipfile raise many classes for files that are damaged or no .npz
        raise ArgumentError(
            "the inputs can't be read", where=str(path), why=str(error), next="write them with numpy.savez"
        ) from error


def _write(path: Path, outputs: Mapping[str, NDArray[Any]]) -> None:
    try:
        with path.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **outputs)
    except OSError as error:
        raise ArgumentError(
            "the outputs can't be written", where=str(path), why=error.strerror or str(error), next="name another file"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
