"""Runs a release on a device, and records the outputs of its contexts and how long they take.

The device gets one file with :mod:`pipeline.qnn_release`, the archive, and inputs; it gives back the outputs and times
of each context. The folder on the device is named by the digests of what was sent, so a command that was cut off while
it copied or measured goes on where it was.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pipeline import qnn_release
from pipeline.contracts.codec import ContractError
from pipeline.contracts.device import DeviceAnswer, DeviceLook, MeasuredContext, MeasuredOn
from pipeline.errors import DeviceError, VerificationError
from pipeline.frozen import dataclass
from pipeline.model import Json
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.qnn.provider_options import PERFORMANCE_MODE
from pipeline.qnn_release.measure import INPUTS, PART, RELEASE, REQUEST, RESULTS
from pipeline.release.records.record import Arrays, RecordWriter, ToRecord, path_of, to_record
from pipeline.release.records.ssh import Ssh
from pipeline.release.verify import verify_release
from pipeline.report.page.devices import FOLDER
from pipeline.sizes import human_bytes
from pipeline.store.digests import sha256_file
from pipeline.store.durable import write_atomically

PROGRAM = "runtime.pyz"
_DIGITS = 16


@dataclass(frozen=True)
class HowToMeasure:
    """How many samples are recorded for each context, and for how many `seconds` and at most how often it is timed.

    `performance_mode` is what to ask of the NPU; "" leaves it to the release.
    """

    samples: int
    seconds: int
    most: int = 1000
    performance_mode: str = ""

    def mode_of(self, target: Mapping[str, Any]) -> str:
        """The performance mode that the contexts of a target of release.json are run with."""
        asked: str = self.performance_mode or target.get("runtime_options", {}).get(PERFORMANCE_MODE, "default")
        return asked


def measure_on(
    archive: Path,
    steps: Sequence[Step],
    workspace: Workspace,
    ssh: Ssh,
    how: HowToMeasure,
) -> Iterator[str]:
    """Run the contexts of an archive on a device, write the record and the figures, and yield lines for the user.

    Raises:
        DeviceError: the device can't be reached, or can't run the release.
        VerificationError: the archive is not as it was made, or a context that fits the device failed there.
        ConfigError, StoreError: as for :func:`pipeline.release.records.record.to_record`.
    """
    index = verify_release(archive).index
    wanted = [each for each in to_record(archive, index, steps, workspace, how.samples) if each.padded]
    record, contexts, failed = RecordWriter(), list[MeasuredContext](), dict[str, str]()
    skipped: dict[str, str] = {}
    with TemporaryDirectory() as folder:
        work = Path(folder)
        sent = _Sent(archive, wanted, how, work)
        device = ssh.at(f"{ssh.folder}/{sent.key}")
        device.put_small({PROGRAM: sent.program, REQUEST: sent.request})
        look = _looked(device)
        yield f"{ssh.host}: {look.system}, {look.device}, onnxruntime-qnn {look.tools.get('onnxruntime-qnn', '')}"
        yield from _copy(device, sent.files, look.sizes)
        for answer in _run(device, len(wanted)):
            each = wanted[answer.context]
            if answer.outputs:
                record.add(each, _fetched(device, answer, work))
                contexts.append(_measured(each, index, answer))
                record.time(contexts[-1])
            elif answer.not_run or (look.device == "emulator" and each.context["packing"] != "separate"):
                skipped[each.name] = answer.not_run or answer.failed or ""
                record.leave_out(each, skipped[each.name])
            else:
                failed[each.name] = answer.failed or ""
            yield f"{each.name}: {_line(answer)}"
    if failed or not contexts:
        raise VerificationError(
            f"{', '.join(failed)} failed on {ssh.host}" if failed else f"no context of the release fits {ssh.host}",
            where=archive.name,
            why="; ".join(dict.fromkeys((failed or skipped).values())),
            remedy="update the device's driver, or build for its SoC",
        )
    assert look.device
    name = ssh.host.rpartition("@")[2]
    measured = MeasuredOn(
        name=name,
        device=look.device,
        system=look.system,
        tools=look.tools,
        performance_mode={target["name"]: how.mode_of(target) for target in index["targets"]},
        power=look.power,
        plan=look.plan,
        contexts=tuple(contexts),
    )
    where = {key: value for key, value in measured.to_json().items() if key != "contexts"}
    path = path_of(archive, name)
    seal = "signed" if record.write(path, archive, index, {**where, "driver": None}) else "not signed"
    kept = workspace.build / FOLDER / index["model"] / f"{name}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(kept, json.dumps(measured.to_json(), indent=1).encode(), durable=False)
    yield f"{path.name}: {len(record.runs)} runs on the {look.device} of {name}, {seal}"


class _Sent:
    """The files for the device, by their names there: small ones, and large ones whose copying can be resumed."""

    def __init__(self, archive: Path, wanted: Sequence[ToRecord], how: HowToMeasure, work: Path) -> None:
        self.program, self.request = work / PROGRAM, work / REQUEST
        self.files = {RELEASE: archive, INPUTS: work / INPUTS}
        arrays: dict[str, Any] = {}
        contexts: list[Json] = []
        for each in wanted:
            samples: list[Json] = []
            for feed in each.padded:
                keys = {name: str(len(arrays) + at) for at, name in enumerate(feed)}
                arrays |= {key: feed[name] for name, key in keys.items()}
                samples.append({**keys})
            own: dict[str, Json] = {"component": each.component, "axes": {**each.axes}, "target": each.target["name"]}
            contexts.append({**own, "samples": samples})
        np.savez(self.files[INPUTS], **arrays, allow_pickle=False)
        self.program.write_bytes(program())
        request: dict[str, Json] = {
            "seconds": how.seconds,
            "most": how.most,
            "options": {PERFORMANCE_MODE: how.performance_mode} if how.performance_mode else {},
            "files": {name: sha256_file(path) for name, path in self.files.items()},
            "contexts": contexts,
        }
        self.request.write_text(json.dumps(request), "utf-8")
        self.key = hashlib.sha256(self.request.read_bytes() + self.program.read_bytes()).hexdigest()[:_DIGITS]


def program() -> bytes:
    """Our runtime as one file that Python runs. Equal code gives equal bytes."""
    folder = Path(qnn_release.__file__).parent
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path in sorted(folder.glob("*.py")):
            archive.writestr(_entry(f"qnn_release/{path.name}"), path.read_bytes())
        archive.writestr(_entry("__main__.py"), b"from qnn_release.measure import main\n\nraise SystemExit(main())\n")
    return data.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name)  # of 1980, whenever it is made


def _asked(device: Ssh, what: str) -> Iterator[Mapping[str, Json]]:
    return device.ask(f"{device.folder}/{PROGRAM}", what, device.folder)


def _looked(device: Ssh) -> DeviceLook:
    """What the device says of itself. Raises DeviceError if it has neither an NPU nor the emulator."""
    try:
        look = DeviceLook.from_json(next(_asked(device, "look"), {}))
    except ContractError as error:
        raise _odd(device, str(error)) from None
    if not look.device:
        raise DeviceError(
            f"{device.host} can't run contexts",
            where=", ".join((look.system, *(f"{name} {known}" for name, known in look.tools.items() if known))),
            why=look.why,
            remedy="install onnxruntime-qnn there, and the NPU's driver",
        )
    return look


def _copy(device: Ssh, files: Mapping[str, Path], there: Mapping[str, int]) -> Iterator[str]:
    """Copy the files that are not there yet, and yield a line that says how much that is."""
    missing = {name: path for name, path in files.items() if there.get(name) != path.stat().st_size}
    if not missing:
        return
    size = sum(path.stat().st_size for path in missing.values())
    part = sum(there.get(f"{name}{PART}", 0) for name in missing)
    yield f"copying {human_bytes(size)}" + (f", of which {human_bytes(part)} are there" if part else "")
    device.put(missing, there)
    if damaged := _damaged(device):  # the part that was resumed belonged to another file
        device.put({name: files[name] for name in damaged if name in files}, {})
        damaged = _damaged(device)
    if damaged:
        why = "its SHA-256 was another twice"
        raise DeviceError(f"{', '.join(damaged)} does not arrive as it is sent", where=device.host, why=why)


def _damaged(device: Ssh) -> list[str]:
    return [str(told["damaged"]) for told in _asked(device, "keep") if "damaged" in told]


def _run(device: Ssh, count: int) -> Iterator[DeviceAnswer]:
    """The answer for each context. Those that were measured before the connection was lost come at once."""
    for told in _asked(device, "run"):
        try:
            answer = DeviceAnswer.from_json(told)
        except ContractError as error:
            raise _odd(device, str(error)) from None
        if not 0 <= answer.context < count:
            raise _odd(device, f"of context {answer.context}, and {count} were asked for")
        yield answer


def _fetched(device: Ssh, answer: DeviceAnswer, work: Path) -> list[Arrays]:
    """The outputs for each sample, fetched from the device."""
    name = f"{answer.context:04d}.npz"
    device.get([f"{RESULTS}/{name}"], work)
    if sha256_file(work / name) != answer.sha256:
        raise _odd(device, f"{name} has another SHA-256 than was told")
    try:
        with np.load(work / name, allow_pickle=False) as arrays:
            return [{output: arrays[key] for output, key in keys.items()} for keys in answer.outputs]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _odd(device, f"{name}: {error}") from None


def _odd(device: Ssh, why: str) -> DeviceError:
    remedy = f"look at {device.folder} there, or delete it, then the same command again"
    return DeviceError(f"{device.host} does not answer as it should", where=device.folder, why=why, remedy=remedy)


def _measured(each: ToRecord, index: Mapping[str, Any], answer: DeviceAnswer) -> MeasuredContext:
    files = (each.context["model"], *each.context["binaries"])
    return MeasuredContext(
        component=each.component,
        axes=each.axes,
        target=each.target["name"],
        files={Path(name).name: index["files"][name]["sha256"] for name in files},
        load_s=round(answer.load_s, 4),
        first_ms=round(answer.first_ms, 4),
        median_ms=round(answer.median_ms, 4),
        p90_ms=round(answer.p90_ms, 4),
        runs=answer.runs,
    )


def _line(answer: DeviceAnswer) -> str:
    if not answer.outputs:
        return f"not run, {answer.not_run or answer.failed}"
    return (
        f"median {answer.median_ms:.3g} ms, p90 {answer.p90_ms:.3g} ms of {answer.runs} runs;"
        f" loaded in {answer.load_s:.3g} s, first run {answer.first_ms:.3g} ms"
    )
