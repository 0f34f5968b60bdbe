"""What a reader is given and what it yields."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike, NDArray

from pipeline.contracts.language import LanguageFacts
from pipeline.contracts.samples import Reading
from pipeline.errors import CalibrationError
from pipeline.inputs.samples.conform import Interface, conform
from pipeline.plain_text import did_you_mean


@dataclass(frozen=True)
class Sample:
    """One item of the calibration set: a line, a file, or what a callable yielded.

    `name` says where it is from (``sentences.txt:3``), `cut` is True if it was truncated to the largest bucket.
    """

    index: int
    name: str
    text: str | None = None
    label: str | None = None
    cut: bool = False


@dataclass(frozen=True)
class Call:
    """One run of a component: its inputs, unpadded, in the model's order and dtypes, and the sample it is from.

    `refused` is why the sample is none for this component, which fails it and no other.
    """

    component: str
    arrays: Mapping[str, NDArray[Any]]
    sample: Sample
    refused: CalibrationError | None = None


@dataclass(frozen=True)
class ReadRequest:
    """All a reader may look at.

    `interfaces` and `models` (each the dynamic model.onnx) cover every component. `source` holds the fetched files;
    `samples` is the file or folder of the calibration set, `code` the file that holds the function. `languages`
    has the facts of components that are language models.
    """

    calibration: Reading
    interfaces: Mapping[str, Interface]
    models: Mapping[str, Path]
    source: Path
    samples: Path | None = None
    code: Path | None = None
    languages: Mapping[str, LanguageFacts] = field(default_factory=dict)

    def call(self, component: str, arrays: Mapping[str, ArrayLike], sample: Sample) -> Call:
        """A call whose arrays are checked against the component's inputs; raises CalibrationError."""
        where = f"{sample.name}, component {component!r}"
        return Call(component, conform(arrays, self.interfaces[component], where=where), sample)

    def given(self, component: str, arrays: Mapping[str, ArrayLike], sample: Sample) -> Call:
        """The same for a sample that is there for the component alone: what does not fit is refused in the call."""
        try:
            return self.call(component, arrays, sample)
        except CalibrationError as error:
            return Call(component, {}, sample, refused=error)

    def calls(self, arrays: Mapping[str, ArrayLike], sample: Sample) -> Iterator[Call]:
        """A call of every component whose inputs `arrays` holds.

        Raises:
            CalibrationError: no component takes these arrays, or one array is no component's.
        """
        takers = {
            component: {name: arrays[name] for name in interface.names if name in arrays}
            for component, interface in self.interfaces.items()
            if interface.takes(arrays)
        }
        if len(self.interfaces) == 1 or not takers:
            # Let the check say what is wrong, against the component that takes the most of what is here.
            nearest = max(
                self.interfaces, key=lambda name: sum(spec.name in arrays for spec in self.interfaces[name].inputs)
            )
            yield self.call(nearest, arrays, sample)
            return
        known = {name for interface in self.interfaces.values() for name in interface.names}
        strangers = [str(name) for name in arrays if name not in known]
        if strangers:
            raise CalibrationError(
                f"no component has an input {strangers[0]!r}{did_you_mean(strangers[0], known)}",
                where=sample.name,
                remedy="name the arrays like the inputs",
            )
        for component, taken in takers.items():
            yield self.given(component, taken, sample)

    def only(self, components: Collection[str]) -> ReadRequest:
        """The same for some of the components."""
        return replace(self, interfaces={name: self.interfaces[name] for name in self.interfaces if name in components})

    def describe(self, item: Mapping[str, Any], sample: Sample) -> tuple[dict[str, Any], Sample]:
        """Split an item into its arrays and its sample, which takes entries named `text` and `label` that are no input.

        They aren't fed to any component; they are what a score on held-out samples compares with.
        """
        inputs = {name for interface in self.interfaces.values() for name in interface.names}
        said = {name: _text(item[name]) for name in ("text", "label") if name in item and name not in inputs}
        arrays = {name: value for name, value in item.items() if name not in said}
        return arrays, replace(sample, text=said.get("text"), label=said.get("label"))

    def existing(self, path: Path | None, what: str) -> Path:
        """`path`, if the config gives one and it exists; raises CalibrationError. `what` is its key in the config."""
        if path is None or not path.exists():
            found = "does not exist" if path else "is not set"
            raise CalibrationError(
                f"calibration.{what} {found}",
                where=path.name if path else "",
                why=f"reader {self.calibration.reader!r} needs it",
                remedy=f"create it, or correct calibration.{what} in the config",
            )
        return path


def _text(value: object) -> str:
    """A text or label as it can be written: of halves of characters, which UTF-8 does not have, the escapes."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
