"""The fetch stage and the pinning of branches as the product runs them: in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from pipeline.build.worker import dump_request, load_answer
from pipeline.contracts.fetch import Commit, Params
from pipeline.graph.files.model_file import set_external
from pipeline.model import Json, StageRequest
from tests.support.hub_server import HubServer

ROOT = Path(__file__).resolve().parents[2]
TRIES = 3
# The product waits seconds between tries; here it is as patient but quicker. Set before anything reads it.
QUICK = "import sys; from pipeline.inputs.hub import failures; failures.WAITS_S = (0.01, 0.02); "
_WORKER = QUICK + "from pipeline.build import worker; sys.exit(worker.main(sys.argv[1]))"
_PIN = QUICK + (
    "from pathlib import Path; from pipeline.inputs import pins; from pipeline import errors\n"
    "try: print(pins.pin(sys.argv[1], sys.argv[2], Path(sys.argv[3])))\n"
    "except errors.PipelineError as error: sys.exit(str(error))"
)


@dataclass(frozen=True)
class Fetched:
    """What a fetch step left."""

    facts: Mapping[str, Json]
    files: Mapping[str, bytes]
    log: str


class Machine:
    """A home folder, and thus an HF cache, in which fetch steps run."""

    def __init__(self, folder: Path, hub: HubServer | None = None) -> None:
        self.folder = folder
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.environ |= {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        if hub:
            self.environ |= hub.environ(folder / "home")
        self.cache = folder / "home" / "hub"
        self.log = ""
        """What the last step printed."""
        self._count = 0

    def fetch(self, repo: str, commit: str, names: Sequence[str], *, prelude: str = "", **environ: str) -> Fetched:
        """Run the stage for a hub repo; raises the error that it answered with."""
        return self.wait(self.start(repo, commit, names, prelude=prelude, **environ))

    def copy(self, files: Mapping[str, Path]) -> Fetched:
        """Run the stage for a local folder."""
        return self.wait(self._start(Params(None, tuple(files)), files, "", {}))

    def start(
        self, repo: str, commit: str, names: Sequence[str], *, prelude: str = "", **environ: str
    ) -> subprocess.Popen[bytes]:
        """Start the stage for a hub repo; `prelude` is code to run in its process first."""
        return self._start(Params(Commit(repo, commit), tuple(names)), {}, prelude, environ)

    def wait(self, child: subprocess.Popen[bytes]) -> Fetched:
        """Wait for a started step; raises the error that it answered with."""
        child.wait(60)
        run = Path(str(child.args[-1])).parent if isinstance(child.args, list) else self.folder
        self.log = (run / "log").read_text("utf-8")
        assert (run / "answer.json").exists(), self.log
        facts = load_answer(run / "answer.json").facts
        out = run / "out"
        files = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        return Fetched(facts, files, self.log)

    def pin(self, repo: str, revision: str, pins: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Pin a branch; stdout ends with the commit, stderr is the error's text."""
        command = [sys.executable, "-c", _PIN, repo, revision, str(pins)]
        return subprocess.run(command, env=self.environ | environ, capture_output=True, text=True, timeout=60)

    def blobs(self) -> list[Path]:
        """The blobs in the HF cache, partial ones included."""
        return sorted(self.cache.glob("models--*/blobs/*"))

    def _start(
        self, params: Params, files: Mapping[str, Path], prelude: str, environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        self._count += 1
        run = self.folder / f"run{self._count}"
        (run / "out").mkdir(parents=True)
        request = StageRequest("fetch:test", params.to_json(), {}, files, run / "out")
        (run / "request.json").write_text(dump_request(request, "fetch", run / "answer.json"), "utf-8")
        command = [sys.executable, "-c", prelude + _WORKER, str(run / "request.json")]
        with (run / "log").open("wb") as log:
            return subprocess.Popen(
                command, env={**self.environ, **environ}, cwd=run, stdout=log, stderr=subprocess.STDOUT
            )


def model_with(*locations: str) -> bytes:
    """An ONNX file with one external tensor for each location."""
    tensors = []
    for number, location in enumerate(locations):
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[4])
        set_external(tensor, location, 0, 16)
        tensors.append(tensor)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "net", [value], [out], tensors)
    model: onnx.ModelProto = helper.make_model(graph)
    data: bytes = model.SerializeToString()
    return data


def facts_text(fetched: Fetched) -> str:
    """The facts as the manifest has them."""
    return json.dumps(fetched.facts)
