"""What an application does with the language model of a release: `python -I chat_alone.py JOB.json`.

For an environment that has numpy, onnxruntime, onnxruntime-qnn, onnxruntime-genai, tokenizers, jinja2 and the runtime
as a package, and nothing else: so nothing of the tests is imported. The job names an archive, an engine, a
question and how many tokens to answer with. Genie is asked by its own library, in the unpacked folder of contexts.
"""

import ctypes
import importlib.metadata
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import onnxruntime_qnn
from qnn_release import Release  # type: ignore[import-not-found]  # there it is a package of this name

_ON_TOKENS = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p)


def ask_genie(folder: Path, tokens: list[int], most: int) -> list[int]:
    os.chdir(folder)
    genie = ctypes.CDLL(str(Path(onnxruntime_qnn.get_qnn_htp_path()).with_name("libGenie.so")))
    config, dialog = ctypes.c_void_p(), ctypes.c_void_p()
    text = Path("genie_config.json").read_bytes()
    assert genie.GenieDialogConfig_createFromJson(text, ctypes.byref(config)) == 0
    assert genie.GenieDialog_create(config, ctypes.byref(dialog)) == 0
    assert genie.GenieDialog_setMaxNumTokens(dialog, most) == 0
    made: list[int] = []
    take = _ON_TOKENS(lambda found, count, _code, _user: made.extend(found[at] for at in range(count)))
    assert (
        genie.GenieDialog_tokenQuery(dialog, (ctypes.c_uint32 * len(tokens))(*tokens), len(tokens), 0, take, None) == 0
    )
    return made


def main(job: dict[str, Any]) -> dict[str, Any]:
    warnings.simplefilter("error")  # a fallback to the CPU would be one
    engine = job["engine"]
    with Release.open(job["release"], device="emulator", target=job["target"], cache=job["cache"]) as release:
        chat = release.chat(engine="numpy" if engine == "genie" else engine)
        tokens = chat.encode([{"role": "user", "content": job["question"]}])
        began = time.monotonic()
        if engine == "genie":
            made = ask_genie(release.folder / "contexts" / job["target"], tokens, job["most"])
        else:
            made = [*chat.generate(tokens, max_tokens=job["most"])]
        foreign = {name.split(".")[0] for name in sys.modules} & {"pipeline", "onnx", "doit", "yaml", "huggingface_hub"}
        return {
            "engine": engine,
            "runs_on": chat.runs_on,
            "prompt": len(tokens),
            "tokens": made,
            "text": chat.decode(made),
            "seconds": round(time.monotonic() - began, 1),
            "packages": sorted(each.metadata["Name"].lower() for each in importlib.metadata.distributions()),
            "foreign": sorted(foreign),
        }


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    Path(asked["answer"]).write_text(json.dumps(main(asked)), "utf-8")
    sys.stdout.flush()
    os._exit(0)  # Genie and QNN may abort a process that ends in order
