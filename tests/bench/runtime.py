"""What the runtime costs beyond its sessions: `uv run python -m tests.bench.runtime [CALLS]`.

First, in one process: choosing a bucket, padding, counting and cutting back, against a bare `session.run` of inputs
that were padded before. Then, between two: the framed protocol of `pipeline.qnn_release.client`, against JSON with
base64 on the same pipes. The models do next to nothing, so that what is measured is not theirs. What is compared is
called in turns, and figures are medians of the pairs' differences and ratios, so that a drift of the machine shows in
both.
"""

from __future__ import annotations

import base64
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, save_model

from pipeline.qnn_release import Release
from pipeline.qnn_release.client import Client

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
BUCKETS = (32, 64, 128)
LARGEST = BUCKETS[-1]
WIDTHS = {"16 kB out": 32, "196 kB out": 384, "4 MB out": 8192}
JSON_SERVER = "--json-server"
Call = Callable[[], object]


def make_release(folder: Path, width: int) -> Path:
    """A release for the CPU whose component gives every token `width` equal numbers: float32 [1, sequence, width]."""
    (folder / "qdq").mkdir(parents=True)
    files, buckets = {}, []
    for length in BUCKETS:
        name = f"qdq/encoder_{length}.onnx"
        _save_model(folder / name, length, width)
        data = (folder / name).read_bytes()
        files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        buckets.append({"axes": {"sequence": length}, "contexts": {}, "qdq": {"model": name, "files": []}})
    component = {
        "inputs": [{"name": name, "dtype": "int64", "dims": [1, "sequence"]} for name in INPUTS],
        "outputs": [{"name": "states", "dtype": "float32", "dims": [1, {"axis": "sequence"}, {"size": width}]}],
        "buckets": buckets,
    }
    index = {"schema_version": 1, "model": "bench", "version": "1", "files": files, "targets": []}
    (folder / "release.json").write_text(json.dumps({**index, "components": {"encoder": component}}), "utf-8")
    return folder


def _save_model(path: Path, length: int, width: int) -> None:
    nodes = [
        helper.make_node("Sum", [f"{name}_float" for name in INPUTS], ["sum"]),
        *(helper.make_node("Cast", [name], [f"{name}_float"], to=TensorProto.FLOAT) for name in INPUTS),
        helper.make_node("Unsqueeze", ["sum", "last"], ["column"]),
        helper.make_node("Expand", ["column", "shape"], ["states"]),
    ]
    nodes.insert(len(nodes) - 2, nodes.pop(0))
    graph = helper.make_graph(
        nodes,
        "bench",
        [helper.make_tensor_value_info(name, TensorProto.INT64, [1, length]) for name in INPUTS],
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, [1, length, width])],
        [
            helper.make_tensor("last", TensorProto.INT64, [1], [2]),
            helper.make_tensor("shape", TensorProto.INT64, [3], [1, length, width]),
        ],
    )
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def tokens(length: int) -> dict[str, Any]:
    """Inputs of this length."""
    return {name: np.arange(length, dtype=np.int64)[None] for name in INPUTS}


def seconds(call: Call) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def pairs(first: Call, second: Call, count: int) -> list[tuple[float, float]]:
    """Seconds of both, called in turns; the first tenth, in which caches fill, is left out."""
    found = [(seconds(first), seconds(second)) for _ in range(count + count // 10)]
    return found[count // 10 :]


def show(name: str, found: list[tuple[float, float]]) -> None:
    """Print the medians of two calls, of their difference and their ratio; and the difference that 95 % stay below."""
    first, second = (statistics.median(column) * 1e6 for column in zip(*found, strict=True))
    more = sorted((after - before) * 1e6 for before, after in found)
    ratio = statistics.median(after / before for before, after in found)
    print(
        f"{name:44} {first:9.1f} {second:9.1f} {statistics.median(more):+9.1f} {more[len(more) * 95 // 100]:+9.1f}"
        f" {ratio:7.2f}x"
    )


def overhead(calls: int) -> None:
    """A release against a bare session."""
    print(f"{'us: a bare session.run, release.run':44} {'bare':>9} {'release':>9} {'more':>9} {'95 %':>9}")
    with tempfile.TemporaryDirectory() as folder:
        release = Release.open(make_release(Path(folder) / "release", 32), device="cpu", configure=_one_thread)
        for length in (128, 100, 7):
            bucket = min(size for size in BUCKETS if size >= length)
            options = ort.SessionOptions()
            _one_thread(options)
            path = release.folder / f"qdq/encoder_{bucket}.onnx"
            session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            given = tokens(length)
            padded = {name: np.pad(array, ((0, 0), (0, bucket - length))) for name, array in given.items()}
            bare, ours = partial(session.run, None, padded), partial(release.run, "encoder", given)
            show(f"3 inputs, {length} tokens, bucket of {bucket}", pairs(bare, ours, calls))


def two_processes(calls: int) -> None:
    """The framed protocol against JSON and base64."""
    print(f"\n{'us: frames, JSON + base64':44} {'frames':>9} {'JSON':>9} {'more':>9} {'95 %':>9}")
    for name, width in WIDTHS.items():
        with tempfile.TemporaryDirectory() as folder:
            release = make_release(Path(folder) / "release", width)
            command = [sys.executable, "-m", "pipeline.qnn_release.serve", str(release), "--device", "cpu"]
            with Client(command) as client, JsonClient(release) as peer:
                given = tokens(LARGEST)
                wanted = client.run("encoder", given)["states"]
                assert np.array_equal(peer.run(given)["states"], wanted)
                found = pairs(partial(client.run, "encoder", given), partial(peer.run, given), calls)
                show(f"3 inputs of 128 tokens in, {name}", found)


class JsonClient:
    """The other way: a line of JSON each way, with arrays in base64. No threads, no timeouts, no limits."""

    def __init__(self, release: Path) -> None:
        command = [sys.executable, "-m", "tests.bench.runtime", JSON_SERVER, str(release)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The outputs of the component."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(_to_json(inputs)).encode() + b"\n")
        self._process.stdin.flush()
        return _from_json(json.loads(self._process.stdout.readline()))

    def __enter__(self) -> JsonClient:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            pass  # closes its input and waits


def json_server(release: Path) -> None:
    """Answer lines until there are none."""
    with Release.open(release, device="cpu") as opened:
        for line in sys.stdin.buffer:
            outputs = opened.run("encoder", _from_json(json.loads(line)))
            sys.stdout.buffer.write(json.dumps(_to_json(outputs)).encode() + b"\n")
            sys.stdout.buffer.flush()


def _to_json(arrays: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {"dtype": str(array.dtype), "shape": array.shape, "data": base64.b64encode(array.tobytes()).decode()}
        for name, array in arrays.items()
    }


def _from_json(arrays: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.frombuffer(base64.b64decode(entry["data"]), entry["dtype"]).reshape(entry["shape"])
        for name, entry in arrays.items()
    }


def _one_thread(options: ort.SessionOptions) -> None:
    options.intra_op_num_threads = 1  # else threads that wait for work take a core from what is measured


if __name__ == "__main__":
    if JSON_SERVER in sys.argv:
        json_server(Path(sys.argv[-1]))
    else:
        asked = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
        overhead(asked)
        two_processes(asked // 10)
