"""Asks transformers about language models; runs in an environment of its own (:mod:`tests.support.exported`).

    python ask_transformers.py QUESTIONS ANSWERS

QUESTIONS is a JSON file with `tokens`, `folders` of models, and `templates`: lists of a chat template, messages, and
whether the answer is asked for. ANSWERS is an `.npz` file with `<folder number>` float32 [tokens, vocabulary], and
beside it a JSON file with `errors` by folder number, and `rendered`, the text of each template or an object with the
error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf  # type: ignore[import-not-found]
from transformers.utils.chat_template_utils import render_jinja_template  # type: ignore[import-not-found]

hf.utils.logging.set_verbosity_error()
hf.utils.logging.disable_progress_bar()
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def logits(folder: str, tokens: list[int]) -> Any:
    """Of the model in a folder, if transformers loads it with all of its weights."""
    model, told = hf.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    lacking = {
        key: sorted(told[key]) for key in ("missing_keys", "mismatched_keys", "unexpected_keys") if told.get(key)
    }
    if lacking:
        raise ValueError(f"not all weights: {str(lacking)[:300]}")
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens])).logits[0].numpy().astype(np.float32)


def rendered(template: str, messages: list[Any], answer: bool) -> Any:
    """The text, or an object with the error."""
    try:
        made, _ = render_jinja_template(
            conversations=[messages], chat_template=template, add_generation_prompt=answer, **TOKENS
        )
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return made[0]


def main(questions: Path, answers: Path) -> None:
    """Write the answers."""
    asked = json.loads(questions.read_text("utf-8"))
    arrays, errors = {}, {}
    for number, folder in enumerate(asked["folders"]):
        try:
            arrays[str(number)] = logits(folder, asked["tokens"])
        except Exception as error:
            errors[str(number)] = f"{type(error).__name__}: {error}"[:300]
    np.savez(answers, **arrays)
    told = [rendered(*each) for each in asked["templates"]]
    answers.with_suffix(".json").write_text(json.dumps({"errors": errors, "rendered": told}), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
