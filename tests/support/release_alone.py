"""What an application does with a release: `python -I release_alone.py JOB.json`.

For an environment that has numpy, onnxruntime, onnxruntime-qnn and the runtime as a package, and nothing else: so
nothing of the tests is imported. The job names an archive, options of `Release.open`, and files with arrays to run.
"""

import importlib.metadata
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from qnn_release import Release  # type: ignore[import-not-found]  # there it is a package of this name


def main(job: dict[str, Any]) -> dict[str, Any]:
    warnings.simplefilter("error")  # a fallback to the CPU would be one
    with np.load(job["inputs"]) as given:
        calls: dict[int, dict[str, Any]] = {}
        for key in given.files:
            number, name = key.split("/", 1)
            calls.setdefault(int(number), {})[name] = given[key]
    outputs = {}
    with Release.open(job["release"], **job["open"]) as release:
        release.verify()
        for number, inputs in calls.items():
            for name, array in release.run(job["component"], inputs).items():
                outputs[f"{number}/{name}"] = array
        np.savez(job["outputs"], **outputs)
        found = {name.split(".")[0] for name in sys.modules} & {"pipeline", "onnx", "doit", "yaml", "huggingface_hub"}
        return {
            "report": release.report().as_dict(),
            "files": [str(release.file(name)) for name in job["files"]],
            "packages": sorted(each.metadata["Name"].lower() for each in importlib.metadata.distributions()),
            "foreign": sorted(found),
        }


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    Path(asked["answer"]).write_text(json.dumps(main(asked)), "utf-8")  # QNN prints to standard output
