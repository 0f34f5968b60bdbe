"""Asks onnxruntime-genai what follows a prompt, by a folder that it opens as it is.

As a program, `python -m pipeline.qnn.engines.genai REQUEST`, in a process of its own. onnxruntime-genai is an optional
package (the extra `genai`); it runs contexts by the QNN execution provider of onnxruntime-qnn.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.qnn.interface import ANSWER

PACKAGE = "onnxruntime-genai"


def ask(folder: Path, prompt: Sequence[int], most: int, texts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """Up to `most` tokens that follow a prompt, and the tokens of some texts.

    Raises:
        ImportError: the package is not installed.
        Exception: whatever it raises, of classes without a common base.
    """
    import onnxruntime_genai
    import onnxruntime_qnn

    onnxruntime_genai.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
    model = onnxruntime_genai.Model(str(folder))
    tokenizer = onnxruntime_genai.Tokenizer(model)
    encoded = [[int(token) for token in tokenizer.encode(text)] for text in texts]
    made: list[int] = []
    if prompt:
        generator = onnxruntime_genai.Generator(model, onnxruntime_genai.GeneratorParams(model))
        generator.append_tokens([*prompt])
        while len(made) < most and not generator.is_done():
            generator.generate_next_token()
            made.append(int(generator.get_next_tokens()[0]))
    return made, encoded


def main(request_path: str) -> None:
    """Do what the request says, leave the answer beside it, and end the process."""
    request: dict[str, Any] = json.loads(Path(request_path).read_text("utf-8"))
    work = Path(request_path).resolve().parent
    try:
        made, encoded = ask(Path(request["folder"]), request["prompt"], request["most"], request["texts"])
        answer: dict[str, Any] = {"tokens": made, "encoded": encoded}
    except Exception as error:  # as said above
        answer = {"refused": f"{type(error).__name__}: {error}"}
    (work / ANSWER).write_text(json.dumps(answer), "utf-8")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
