"""Runs a GGUF file in llama.cpp: tokens of texts, the rendered chat template, and logarithms of probabilities.

llama.cpp is the optional package xllamacpp (the extra `llamacpp`). Its public interface is llama.cpp's own server, so
that is what is asked, on an address of this machine that needs a password of this run. The server gives no logits but
the probabilities of the likeliest tokens, of all tokens together 1, as they are before sampling.

As a program, `python -m pipeline.inputs.gguf.llama_cpp REQUEST`, in a process of its own: the file may end it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from pipeline.frozen import dataclass
from pipeline.processes import lifeline
from pipeline.processes.exit_status import exit_reason
from pipeline.processes.log_tail import log_tail

PACKAGE = "xllamacpp"
MOST_TOKENS = 1024
"""The number of tokens, the likeliest first, whose probabilities are compared at a position."""
_SECONDS = 1800
_PRIVATE_BYTES = 6 << 30
"""The most memory beside the file itself, which is mapped."""
_UNUSED = -1e30
"""llama.cpp's logarithm of a probability of 0 is below this."""
_REQUEST, _ANSWER, _ARRAYS, _LOG = "request.json", "answer.json", "steps.npz", "log"


@dataclass(frozen=True)
class Questions:
    """The questions about a file: texts, conversations, and prompts as tokens.

    Of each prompt, the next token is asked for after its first n tokens, for each n of `after`, in rising order; one
    more than the last is a step of decoding with llama.cpp's cache.
    """

    texts: Sequence[str]
    conversations: Sequence[Sequence[Mapping[str, str]]]
    prompts: Sequence[Sequence[int]]
    after: Sequence[Sequence[int]]


@dataclass(frozen=True)
class NextToken:
    """A place: the number of the prompt, and of the tokens in front of the one that is asked for.

    `tokens` int64 [k] are the likeliest, the first the most, `logs` float64 [k] the logarithms of their probabilities.
    """

    prompt: int
    read: int
    tokens: NDArray[np.int64]
    logs: NDArray[np.float64]


@dataclass(frozen=True)
class Told:
    """The answers: tokens of each text, each conversation as text (None where the template refuses it), and steps.

    `begun` has the tokens of the first text with those that llama.cpp puts around every text.
    """

    ids: Sequence[Sequence[int]]
    begun: Sequence[int]
    rendered: Sequence[str | None]
    steps: Sequence[NextToken]


def version() -> str | None:
    """The version of the package; None where it is not installed."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def ask(file: Path, asked: Questions, seconds: float = _SECONDS) -> Told | str:
    """The answers of llama.cpp, from a process of its own; or the reason why there are none."""
    with TemporaryDirectory() as folder:
        work = Path(folder)
        request: dict[str, Any] = {"file": str(file.resolve()), "texts": [*asked.texts]}
        request["conversations"] = [[dict(message) for message in each] for each in asked.conversations]
        request |= {"prompts": [[*each] for each in asked.prompts], "after": [[*each] for each in asked.after]}
        (work / _REQUEST).write_text(json.dumps(request), "utf-8")
        with (work / _LOG).open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", __name__, str(work / _REQUEST)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=lifeline.inherited(),
            )
            try:
                status = child.wait(seconds)
            except subprocess.TimeoutExpired:
                return f"it takes more than {seconds:g} seconds"
            finally:
                child.kill()
                child.wait()
        return _told(work, status)


def _told(work: Path, status: int) -> Told | str:
    try:
        told: dict[str, Any] = json.loads((work / _ANSWER).read_text("utf-8"))
        if "refused" in told:
            return str(told["refused"])
        with np.load(work / _ARRAYS, allow_pickle=False) as arrays:
            steps = [
                NextToken(prompt, read, arrays[f"{number}/tokens"], arrays[f"{number}/logs"])
                for number, (prompt, read) in enumerate(told["steps"])
            ]
        return Told(told["ids"], told["begun"], told["rendered"], steps)
    except (OSError, ValueError, KeyError):
        said = [line.partition(" E ")[2] or line for line in log_tail(work / _LOG, 40) if " E " in line]
        return f"it ended its process: {exit_reason(status)}" + "".join(f"; {line.strip()}" for line in said[-2:])


class _Server:
    """llama.cpp's server with one file, as exact as it computes: the cache in float32, no other form of the weights."""

    def __init__(self, file: str, longest: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = file
        params.n_ctx = longest
        params.n_batch = params.n_ubatch = 64
        params.n_parallel, params.n_gpu_layers = 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = params.n_threads_http = 1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.warmup = params.fit_params = params.ui = params.endpoint_slots = False
        params.no_extra_bufts = params.swa_full = params.use_jinja = True
        params.cache_ram_mib, params.verbosity = 0, 1
        self._password = secrets.token_hex(16)
        params.api_keys = [self._password]
        self._server = xllamacpp.Server(params)
        self._letter = self.tokens("a")[-1]

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._password}"}
        asked = Request(self._server.listening_address + path, json.dumps(body).encode(), headers)
        with urlopen(asked) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def tokens(self, text: str, *, special: bool = False) -> list[int]:
        """The tokens of a text; if `special`, with those that begin and end every text."""
        body = {"content": text, "add_special": special, "parse_special": True}
        found: list[int] = self.post("/tokenize", body)["tokens"]
        return found

    def likeliest(self, tokens: Sequence[int]) -> list[tuple[int, float]]:
        """The likeliest next tokens and the logarithms of their probabilities.

        The server says nothing of a token that ends a text or within a letter, so that it is made to take an `a`.
        """
        body: dict[str, Any] = {"prompt": [*tokens], "n_predict": 1, "n_probs": MOST_TOKENS, "temperature": -1}
        told = self._server.handle_completions(
            body | {"cache_prompt": True, "stream": False, "logit_bias": [[self._letter, 1e6]]}
        )
        if "error" in told:
            raise RuntimeError(str(told["error"].get("message")))
        (first,) = told["choices"][0]["logprobs"]["content"]
        found = [(int(top["id"]), top["logprob"]) for top in first["top_logprobs"]]
        return [(token, log) for token, log in found if log is not None and log > _UNUSED]


def _answer(request: dict[str, Any], work: Path) -> dict[str, Any]:
    longest = max(map(len, request["prompts"]), default=0) + 8
    server = _Server(request["file"], longest)
    ids = [server.tokens(text) for text in request["texts"]]
    begun = [server.tokens(text, special=True) for text in request["texts"][:1]]
    rendered: list[str | None] = []
    for messages in request["conversations"]:
        rendered.append(None)
        with contextlib.suppress(OSError):
            rendered[-1] = server.post("/apply-template", {"messages": messages})["prompt"]
    steps: list[tuple[int, int]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for number, (prompt, after) in enumerate(zip(request["prompts"], request["after"], strict=True)):
        for read in after:
            tokens, logs = zip(*server.likeliest(prompt[:read]), strict=True)
            arrays[f"{len(steps)}/tokens"] = np.array(tokens, np.int64)
            arrays[f"{len(steps)}/logs"] = np.array(logs, np.float64)
            steps.append((number, read))
    np.savez(work / _ARRAYS, allow_pickle=False, **arrays)
    return {"ids": ids, "begun": begun[0] if begun else [], "rendered": rendered, "steps": steps}


def main(request_path: str) -> None:
    """Answer a request in the folder that it is in, and end the process."""
    path = Path(request_path)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (_PRIVATE_BYTES, _PRIVATE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer = _answer(json.loads(path.read_text("utf-8")), path.parent)
    except Exception as error:  # the package raises RuntimeError, and its server answers in other shapes
        answer = {"refused": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    (path.parent / _ANSWER).write_text(json.dumps(answer), "utf-8")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
