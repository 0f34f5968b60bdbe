"""The types of what a reader is given and of what it yields."""

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
    """One item of the calibration set: a line, a file, or an item that a function yielded.

    `name` says where it is from (``sentences.txt:3``), `cut` whether it was cut to the largest bucket.
    """

    index: int
    name: str
    text: str | None = None
    label: str | None = None
    cut: bool = False


@dataclass(frozen=True)
class Call:
    """One run of a component: its inputs, unpadded, in the model's order and dtypes, and the sample it is from.

    `refused` is the error if this component can't use the sample. Other components may still use theirs.
    """

    component: str
    arrays: Mapping[str, NDArray[Any]]
    sample: Sample
    refused: CalibrationError | None = None


@dataclass(frozen=True)
class ReadRequest:
    """Everything that a reader may look at.

    `interfaces` and `models`, the paths of the dynamic models, have an entry for every component. `source` is the
    folder of fetched files, `samples` the file or folder of the calibration set, and `code` the file with the user's
    function. `languages` has the facts of components that are language models.
    """

    calibration: Reading
    interfaces: Mapping[str, Interface]
    models: Mapping[str, Path]
    source: Path
    samples: Path | None = None
    code: Path | None = None
    languages: Mapping[str, LanguageFacts] = field(default_factory=dict)

    def call(self, component: str, arrays: Mapping[str, ArrayLike], sample: Sample) -> Call:
        """A call of a component. Raises CalibrationError if the arrays don't fit the component's inputs."""
        where = f"{sample.name}, component {component!r}"
        return Call(component, conform(arrays, self.interfaces[component], where=where), sample)

    def given(self, component: str, arrays: Mapping[str, ArrayLike], sample: Sample) -> Call:
        """As :meth:`call`, for a sample of this component alone: if it does not fit, `refused` has the error."""
        try:
            return self.call(component, arrays, sample)
        except CalibrationError as error:
            return Call(component, {}, sample, refused=error)

    def calls(self, arrays: Mapping[str, ArrayLike], sample: Sample) -> Iterator[Call]:
        """A call of every component all of whose inputs are in `arrays`.

        Raises:
            CalibrationError: no component takes these arrays, or an array is no input of any component.
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
        """This request for some of the components."""
        return replace(self, interfaces={name: self.interfaces[name] for name in self.interfaces if name in components})

    def describe(self, item: Mapping[str, Any], sample: Sample) -> tuple[dict[str, Any], Sample]:
        """Split an item into its arrays, and its sample with the entries `text` and `label`, if these are no inputs.

        They are not fed to any component: a score on held-out samples compares outputs with them.
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
    """A text or label that can be written: halves of characters, which UTF-8 does not have, become escapes."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
