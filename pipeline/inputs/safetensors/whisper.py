"""Reads Whisper as transformers saves it (WhisperForConditionalGeneration), and makes its encoder or decoder a graph.

Keys are those of transformers' `configuration_whisper.py`. A key or a tensor that is not known is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from onnx import ModelProto

from pipeline.contracts.ingest import Facts, SpeechPart
from pipeline.errors import ModelError
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import CONVERTED, MODEL, WEIGHTS, signature
from pipeline.graph.language.builder import OPSET, GraphBuilder
from pipeline.graph.language.hyper import Hyper
from pipeline.graph.language.whisper import WhisperSizes, build_whisper_decoder, build_whisper_encoder
from pipeline.inputs.safetensors.file import SafeTensor
from pipeline.inputs.safetensors.hyper import LARGEST_CONFIG, WITHOUT_EFFECT, ModelConfigJson, unusual
from pipeline.inputs.safetensors.index import CONFIG, read_object
from pipeline.inputs.safetensors.weights import SafetensorsWeights, read_tensors, same_bytes
from pipeline.model import StageRequest, StageResult

_HEAD, _TABLE = "proj_out.weight", "model.decoder.embed_tokens.weight"
_EPSILON = 1e-5
"""Of torch's LayerNorm, which a config.json can't change."""
_READ = frozenset({
    "model_type", "architectures", "d_model", "vocab_size", "num_mel_bins", "encoder_layers", "decoder_layers",
    "encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "max_source_positions",
    "max_target_positions", "tie_word_embeddings",
})  # fmt: skip
_ONLY: Mapping[str, tuple[object, str]] = {
    "activation_function": ("gelu", "its activation is another one"),
    "scale_embedding": (False, "it scales its embeddings"),
    "is_encoder_decoder": (True, "it has no encoder"),
    "use_weighted_layer_sum": (False, "it classifies sounds"),
}
_NO_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(
        ("dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop", "init_std", "classifier_proj_size",
         "apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob",
         "mask_feature_length", "mask_feature_min_masks"), "for training"
    ),
    "num_hidden_layers": "is encoder_layers again",
    "median_filter_width": "for the times of words",
    "bos_token_id": "no prompt has it",
    "eos_token_id": "ends a text: the words of the loop",
    "pad_token_id": "fills batches",
}  # fmt: skip


def whisper_sizes(config: ModelConfigJson, tokens: int) -> WhisperSizes:
    """The sizes of a Whisper whose decoder remembers `tokens` tokens.

    Raises:
        ModelError: a key is not supported, or a size is missing or absurd.
    """
    for key, value in config.values.items():
        if key in _ONLY and value is not None and value != _ONLY[key][0]:
            raise unusual(config, f"{_ONLY[key][1]} ({key!r} is {str(value)[:60]})")
        known = key in _READ or key in _ONLY or key in _NO_EFFECT or key in WITHOUT_EFFECT
        if not known and value is not None:
            raise unusual(config, f"its key {key[:100]!r} is not known, and may change what the model computes")
    if config.values.get("architectures") not in (None, ["WhisperForConditionalGeneration"]):
        raise unusual(config, f"it is saved as {str(config.values['architectures'])[:80]}")
    found = WhisperSizes(
        width=config.size("d_model"),
        bands=config.size("num_mel_bins", 80),
        frames=2 * config.size("max_source_positions", 1500),
        vocabulary=config.size("vocab_size"),
        positions=config.size("max_target_positions", 448),
        encoder_layers=config.size("encoder_layers"),
        decoder_layers=config.size("decoder_layers"),
        encoder_heads=config.size("encoder_attention_heads"),
        decoder_heads=config.size("decoder_attention_heads"),
        encoder_inner=config.size("encoder_ffn_dim"),
        decoder_inner=config.size("decoder_ffn_dim"),
        tokens=tokens,
    )
    if found.width % found.encoder_heads or found.width % found.decoder_heads:
        raise unusual(config, f"a width of {found.width} is not a multiple of its heads")
    if max(found.encoder_layers, found.decoder_layers) > 1000:
        raise unusual(config, "it has more than 1000 layers")
    if tokens > found.positions:
        raise unusual(config, f"it was made for {found.positions} tokens, and speech_model.tokens is {tokens}")
    return found


class _PartOfWeights(SafetensorsWeights):
    """The tensors of a part, by their own names."""

    def __init__(self, tensors: Mapping[str, SafeTensor], part: str, *, tied: bool) -> None:
        super().__init__(tensors, "whisper", tied=tied, biases=frozenset())
        self._of_encoder = part == "encoder"

    def unread(self) -> Iterable[str]:
        """The tensors of this part that nobody asked for."""
        for name in super().unread():
            crossing = ".encoder_attn.k_proj." in name or ".encoder_attn.v_proj." in name
            if (name.startswith("model.encoder.") or crossing) == self._of_encoder and not (
                name == _HEAD and self._tied
            ):
                yield name

    def _tensor(self, name: str) -> SafeTensor | None:
        return None if name == _HEAD and self._tied else self._tensors.get(name)


def ingest_whisper(request: StageRequest, name: str, speech: SpeechPart) -> StageResult:
    """Write ``model.onnx`` of a part, and ``converted.bin``; other weights stay in the file of the source.

    Raises:
        ModelError: the file is damaged, or its model is not supported.
    """
    given = request.inputs["fetch"]
    path = given.folder / name
    config = ModelConfigJson(read_object(path.parent / CONFIG, LARGEST_CONFIG), CONFIG)
    if config.text("model_type") != "whisper":
        raise unusual(
            config, f"'model_type' is {str(config.values.get('model_type'))[:60]!r}, and 'speech_model' is for whisper"
        )
    sizes = whisper_sizes(config, speech.tokens)
    tensors = read_tensors(path)
    tied = config.flag("tie_word_embeddings", True)
    head, table = tensors.get(_HEAD), tensors.get(_TABLE)
    if tied and head is not None and table is not None and not same_bytes(head, table):
        raise ModelError(
            f"the source has an output layer of its own, {_HEAD!r}, and says that its embeddings are tied",
            where=name,
            why="the two differ, so one of the two is not what the model was trained with",
            remedy="set tie_word_embeddings in config.json to false if the output layer is right",
        )
    hyper = Hyper("whisper", sizes.decoder_layers, sizes.width, sizes.decoder_heads, sizes.decoder_heads,
                  sizes.width // sizes.decoder_heads, sizes.vocabulary, sizes.positions, _EPSILON, {})  # fmt: skip
    kept: dict[Path, str] = {}

    def blob_of(path: Path) -> str:
        number = len(kept) + 1
        return kept.setdefault(path, WEIGHTS if number == 1 else WEIGHTS.replace(".", f"_{number}."))

    with BlobWriter(request.out / CONVERTED) as blob:
        builder = GraphBuilder(hyper, _PartOfWeights(tensors, speech.part, tied=tied), blob, blob_of)
        (build_whisper_encoder if speech.part == "encoder" else build_whisper_decoder)(builder, sizes)
        raw = builder.model(f"whisper_{speech.part}")
    (request.out / MODEL).write_bytes(raw)
    model = ModelProto.FromString(raw)
    known = signature(model)
    layers = sizes.encoder_layers if speech.part == "encoder" else sizes.decoder_layers
    print(f"{name}: whisper {speech.part}, {layers} layers of {sizes.width}, {sizes.vocabulary} tokens")
    nodes = len(model.graph.node)
    facts = Facts(inputs=known.inputs, outputs=known.outputs, constants={}, opset=OPSET, nodes=nodes, axes={})
    reused = {blob: ("fetch", path.relative_to(given.folder).as_posix()) for path, blob in kept.items()}
    return StageResult(facts.to_json(), reused)
