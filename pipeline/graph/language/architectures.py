"""Which architectures can be built, by the names that sources give them, and in what each differs from the plain decoder.

| architecture | models | differs by | source |
|---|---|---|---|
| llama, mistral | Llama 1 to 3, SmolLM2, Mistral | the plain decoder | https://arxiv.org/abs/2307.09288 |
| qwen2 | Qwen 2, 2.5 | biases of queries, keys and values: the builder adds a bias wherever the source has one | https://arxiv.org/abs/2407.10671 |
| qwen3 | Qwen 3 | queries and keys are normed head by head before they are turned | https://arxiv.org/abs/2505.09388 |
| gemma3, gemma3_text | Gemma 3, its text model | norms behind each part and in each head, two rotations, scaled embeddings | https://arxiv.org/abs/2503.19786 |
| phi3 | Phi 3 | queries, keys and values are one matrix, and gate and product | https://arxiv.org/abs/2404.14219 |

Five of six layers of Gemma 3 see a window of the text and have a rotation of their own; contexts beyond the window are
refused, so that one mask serves all layers. Norm weights are those of GGUF: 1 is in them.
"""  # noqa: E501 - a table

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from pipeline.errors import ModelError
from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.decoder import Variant, build_decoder
from pipeline.graph.language.joined_weights import JoinedWeights

_SHRUNK = 16.0
"""The residual stream of Gemma 3 270M reaches 104,000 (layer 14), and float16 ends at 65,504."""


def _plain(builder: GraphBuilder) -> None:
    build_decoder(builder, Variant())


def _qwen3(builder: GraphBuilder) -> None:
    build_decoder(builder, Variant(head_norms=True))


def _gemma3(builder: GraphBuilder) -> None:
    scale = math.sqrt(builder.hyper.hidden)
    variant = Variant(head_norms=True, output_norms=True, gelu=True, embedding_scale=scale, shrunk=_SHRUNK)
    build_decoder(builder, variant)


def _phi3(builder: GraphBuilder) -> None:
    builder.weights = JoinedWeights(builder.weights, builder.hyper)
    build_decoder(builder, Variant())


BUILDERS: Mapping[str, Callable[[GraphBuilder], None]] = {
    "llama": _plain,
    "mistral": _plain,
    "qwen2": _plain,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
}
"""What puts the graph of an architecture into a builder; ModelError as :func:`.decoder.build_decoder`."""


def check_architecture(name: str, where: str, known: Collection[str]) -> None:
    """Refuse an architecture that is not one of those `known` by the names of the source's kind.

    Raises:
        ModelError: with the names of those that can be built.
    """
    if name not in known:
        raise ModelError(
            f"language models of architecture {name!r} can't be built",
            where=where,
            why=f"those that can are {', '.join(sorted(known))}",
            remedy="take a model of one of these; of another, bring an ONNX export and describe its axes as usual",
        )
