"""What an application does with artifacts, knowing only manifest.json: `python load_artifacts.py FOLDER`.

Uses nothing of the project. Checks every hash, loads every context model with the QNN EP for its target, runs it on
random inputs, and prints one JSON line for each.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_qnn


def main(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    ort.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == "QNNExecutionProvider"]
    if any(component["packing"] != "separate" for component in manifest["components"].values()):
        sys.exit("a binary that buckets or targets share runs on a device, not on the emulator")
    (target,) = manifest["targets"]
    for name, component in manifest["components"].items():
        for bucket in component["buckets"]:
            for file, entry in bucket["files"].items():
                data = (folder / file).read_bytes()
                assert len(data) == entry["bytes"]
                assert hashlib.sha256(data).hexdigest() == entry["sha256"]
            options = ort.SessionOptions()
            backend = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": str(target["soc_model"])}
            options.add_provider_for_devices(devices[:1], backend)
            session = ort.InferenceSession(folder / bucket["context_model"], options)
            rng = np.random.default_rng(0)
            feeds = {
                given["name"]: rng.integers(0, 2, given["shape"]).astype(given["dtype"]) for given in bucket["inputs"]
            }
            outputs = session.run(None, feeds)
            shapes = {made["name"]: list(value.shape) for made, value in zip(bucket["outputs"], outputs, strict=True)}
            finite = all(bool(np.isfinite(value).all()) for value in outputs)
            print(json.dumps({"component": name, "axes": bucket["axes"], "shapes": shapes, "finite": finite}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
