"""Writes the schemas in `configs/` and `docs/config.md` from the types: `python -m pipeline.config.docs`.

The files are in version control, so that editors and readers have them without running anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pipeline.config.file import ModelFile
from pipeline.config.project_file import Settings
from pipeline.config.yaml.docstrings import attribute_docs, summary
from pipeline.config.yaml.field_types import Field, Form, ListOf, MapOf, OneOf, Record, describe, record_of
from pipeline.config.yaml.json_schema import plain, schema_of
from pipeline.qnn import catalog
from pipeline.qnn.target import FLOAT16_HTP_ARCH

_HEAD = """\
<!-- Written by `python -m pipeline.config.docs` from pipeline/config/file.py and project_file.py; edit those. -->
# Configuration

`configs/<model>.yaml` describes one model; its name names the model. Most models need no more than this:

```yaml
# yaml-language-server: $schema=config.schema.json
source: {path: ../models/mine}                  # or {hub: owner/name, revision: <40-hex commit>}
components:
  encoder: {file: onnx/model.onnx}
fixed: {batch: 1}                               # axes that are the same everywhere
buckets: {sequence: [32, 64, 128]}              # the axis that is not: one build for each value
calibration: {reader: text, file: calibration/mine/sentences.txt}
targets: [snapdragon-x-elite, sm8650]
```

The first line lets editors complete and check the file as it is typed. A build checks all of it before any work, and
reports every mistake in every file at once, as `file:line:column: path: what; expected ...`, with exit code 10.

The file is YAML 1.2, of which tags, anchors, aliases and second documents are refused: each value is what the page
shows. `yes` and `on` are text, and a key may occur once.

How to prepare samples, and what calibration code may depend on, is in [calibration.md](calibration.md).
"""

_RULES = """\
## Rules across fields

- An axis is either under `fixed` or has buckets. A component uses the axes it has, and buckets that are equal on those
  are one bucket for it.
- An axis to which the ONNX file gives no name goes by its place: `'x[0]'` is the first dim of input `x`. YAML wants
  such names in quotes where they stand in braces, as in `fixed: {'x[0]': 1}`.
- With several axes in `buckets`, `{height: [320, 640], width: [480, 640]}` builds 320x480 and 640x640; with
  `cross: true` beside it 320x480, 320x640, 640x480 and 640x640. A sample or an input goes to the bucket of fewest
  elements that holds it in every axis.
- All points of `buckets` name the same axes. Points and values may be written in any order; each may occur once.
- `verification.outputs` is for a model with one component; where there are several, each has its own `outputs`.
- `verification.samples` may not be the file, folder or function that `calibration` takes its samples from.
- `calibration` may be left out only if every component is fp16.
- A component's `quantization` changes the keys it names and keeps the others of the model's; where the model's is
  `{precision: fp16}`, it keeps the defaults. `{precision: fp16}` replaces it as a whole.
- Every target must be in the catalogue below, under any of its names, and occur once. `vtcm_mb` may not be more than
  the SoC has.
- `packing: buckets` and `socs` need targets with `compile: host`, which those of HTP v68 have only if it is written.
- `{precision: fp16}` needs targets that compute in float16: those of HTP v{arch} and later.
"""

_CHOICES = """\
## Choices of logits

`thresholds: {choices: 0.99}` is about outputs that are probabilities: their values add up to 1 along an axis. The
scores in front of a Softmax (logits) are judged in dB, as other numbers are; how many choices are the same is measured
where a last MatMul or Gemm makes them (`choices alike` in the table), and fails no build. To have it fail one, say
along which axis the application takes the largest:

```yaml
verification:
  outputs:
    logits: {choice: -1, total_db: 23}   # 5 choices of 1000 may be others: 10 * log10(1000 / 5) = 23 dB
```

`logits` is the name of the output in the ONNX file, -1 its last axis. The dB of its values don't count then: those of
the choices do, 20 for one of a hundred, 30 for one of a thousand. Where the original's runner-up is nearer than `tie`,
either is right. A model with several components has this under `components.<name>.outputs`.
"""


_PROJECT = """\
# Settings of the project

`configs/project.yaml` holds what is not about one model; it may be left out, as may each of its keys:

```yaml
# yaml-language-server: $schema=project.schema.json
store: {shared: "s3://bucket/folder"}           # a second tier, shared by machines
stages:
  "*": {hosts: [x86_64]}                        # every stage that is not named here
  context: {hosts: [x86_64, windows-aarch64]}
compare: {size_percent: 5, cost_percent: 5, snr_db: 1.0, score: 0.01}
```

[hosts.md](hosts.md) says which names a host has, and how several hosts build together. A name that no host has by
nature, such as `quantizer`, is one for `PIPELINE_HOST` in the environment of the hosts that are meant; one that looks
like a slip for a name by nature is refused. Which hosts may run a stage is in no key: changing it builds nothing again.
"""


def main() -> None:
    """Write the files into the checkout that this module belongs to."""
    root = Path(__file__).resolve().parents[2]
    for name, text in generated().items():
        (root / name).write_bytes(text.encode())


def generated() -> Mapping[str, str]:
    """The text of each file, by its name relative to the project."""
    model, project = record_of(ModelFile), record_of(Settings)
    parts = (_HEAD, *map(_section, _records(model)), _rules(), _CHOICES, _targets())
    sections = (*parts, _PROJECT, *map(_section, _records(project)))
    return {
        "configs/config.schema.json": _schema(model, "Model configuration"),
        "configs/project.schema.json": _schema(project, "Project settings"),
        "docs/config.md": "\n".join(sections),
    }


def _schema(form: Record, title: str) -> str:
    return json.dumps(schema_of(form, title=title), indent=2, ensure_ascii=False) + "\n"


def _records(form: Form) -> Iterator[Record]:
    """Every record of the file once, outer records before those in them."""
    seen: dict[str, Record] = {}
    waiting = [form]
    while waiting:
        match waiting.pop(0):
            case Record(type=cls) as record if cls.__name__ not in seen:
                seen[cls.__name__] = record
                waiting[:0] = (field.form for field in record.fields.values())
            case OneOf(forms=forms):
                waiting[:0] = forms
            case ListOf(item=inner) | MapOf(value=inner):
                waiting.insert(0, inner)
    yield from seen.values()


def _section(record: Record) -> str:
    docs = attribute_docs(record.type)
    rows = ((f"`{name}`", _type(field.form), _default(field), docs[name]) for name, field in record.fields.items())
    table = _table(("key", "type", "default", "meaning"), rows)
    return f"## {_title(record)}\n\n{summary(record.type)}\n\n{table}"


def _rules() -> str:
    return _RULES.replace("{arch}", str(FLOAT16_HTP_ARCH))


def _targets() -> str:
    rows = (
        (
            f"`{soc.name}`",
            ", ".join((soc.chip, *soc.also_known_as)),
            f"v{soc.htp_arch}",
            f"{soc.vtcm_mb} MB" if soc.vtcm_mb else "not published",
        )
        for soc in catalog.SOCS
    )
    return "## The catalogue\n\n" + _table(("target", "also known as", "HTP", "VTCM"), rows)


def _table(head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _type(form: Form) -> str:
    """The form in words; a record is a link to its section."""
    match form:
        case Record():
            return f"[{_title(form)}](#{_anchor(form)})"
        case OneOf(forms=forms):
            return ", or ".join(_type(form) for form in forms)
        case ListOf(item=item):
            return f"list of: {_type(item)}"
        case MapOf(key=key, value=value):
            return f"mapping of {describe(key)} to {_type(value)}"
        case _:
            return describe(form).replace("<", "\\<")  # else markdown takes it for a tag


def _default(field: Field) -> str:
    if field.required:
        return "**required**"
    return "none" if field.default is None else f"`{json.dumps(plain(field.default))}`"


def _title(record: Record) -> str:
    """A heading for readers of YAML, who don't know the names of our classes."""
    return _TITLES[record.type.__name__]


def _anchor(record: Record) -> str:
    kept = "".join(letter for letter in _title(record).lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


_TITLES = {
    "ModelFile": "The file",
    "HubSource": "source from the hub",
    "LocalSource": "source in a folder",
    "ComponentFile": "components.name",
    "QuantizationOverride": "components.name.quantization",
    "Fp16": "quantization to fp16",
    "Auto": "quantization found by search",
    "Climb": "quantization by default",
    "Quantization": "quantization to integers",
    "BlockWeights": "weights in blocks",
    "OpsRule": "overrides by operator",
    "NodesRule": "overrides by node",
    "TensorsRule": "overrides by value",
    "ThresholdsFile": "thresholds",
    "OutputFile": "verification.outputs.name",
    "TargetOptions": "targets with options",
    "TextReader": "calibration with text",
    "TokenTable": "calibration.vocabulary",
    "NpzReader": "calibration with npz",
    "PythonReader": "calibration with python",
    "RecordReader": "calibration with record",
    "ChatReader": "calibration with chat",
    "LanguageModel": "language_model",
    "SpeechModel": "speech_model",
    "SpeechReader": "calibration with speech",
    "ImagesReader": "calibration with images",
    "AudioReader": "calibration with audio",
    "HubData": "calibration from the hub",
    "Verification": "verification",
    "ModelLimits": "limits",
    "ReleaseSettings": "release",
    "Settings": "The project's file",
    "StoreSettings": "store",
    "StageSettings": "stages.name",
    "CompareSettings": "compare",
    "EngineSettings": "engine",
}

if __name__ == "__main__":
    main()
