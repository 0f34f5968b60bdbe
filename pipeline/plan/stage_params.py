"""Turns parts of a configuration into parameters of stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from pipeline.config.judging import OutputFile
from pipeline.config.load import PythonFunction, Target
from pipeline.config.quantization import Quantization, of_weights
from pipeline.config.quantization import Rule as WrittenRule
from pipeline.config.readers import (
    AudioReader,
    ChatReader,
    HubData,
    ImagesReader,
    NpzReader,
    PythonReader,
    Reader,
    RecordReader,
    SpeechReader,
    TextReader,
)
from pipeline.contracts.measures import Declared
from pipeline.contracts.samples import (
    PICTURES,
    SOUNDS,
    AudioReading,
    ImageReading,
    Reading,
    SpeechReading,
    TextFields,
    TokenInputs,
    VocabularyReading,
)
from pipeline.contracts.scheme import ROOM, Rule, Scheme
from pipeline.contracts.target import HtpTarget
from pipeline.qnn import catalog


def content(reader: Reader) -> tuple[Path | HubData | None, PythonFunction | None]:
    """The file or folder that a reader reads, here or on the hub, and the function that it calls."""
    match reader:
        case TextReader() | ChatReader():
            return reader.file, None
        case NpzReader() | ImagesReader() | AudioReader() | SpeechReader():
            return reader.folder, None
        case PythonReader() | RecordReader():
            return reader.file, reader.run


def source_files(reader: Reader) -> tuple[str, ...]:
    """The files of the model's source that a reader needs, such as its tokenizer."""
    match reader:
        case TextReader():
            return (reader.vocabulary.file if reader.vocabulary else reader.tokenizer,)
        case ImagesReader(processor=str(processor)):
            return (processor,)
    return ()


def suffixes(reader: Reader) -> tuple[str, ...]:
    """The suffixes of the files in a folder that a reader takes as samples; none if it does not choose by suffix."""
    match reader:
        case ImagesReader():
            return PICTURES
        case AudioReader() | SpeechReader():
            return SOUNDS
    return ()


def of_reader(reader: Reader) -> Reading:
    """The parameters of a reader. Where its files are is left out, but for a path in a repository of the hub."""
    place, _ = content(reader)
    read = replace(_of_reader(reader), inside=place.path if isinstance(place, HubData) else None)
    return replace(read, max_samples=reader.max_samples)


def _of_reader(reader: Reader) -> Reading:
    match reader:
        case TextReader():
            fields = TextFields(reader.text, reader.pair, reader.label, reader.columns)
            said = None if fields == TextFields() else fields
            inputs = TokenInputs(reader.ids, reader.mask, reader.length)
            table = reader.vocabulary
            return Reading(
                reader.reader,
                tokenizer=None if table else reader.tokenizer,
                vocabulary=VocabularyReading(**asdict(table)) if table else None,
                tokens_to=None if inputs == TokenInputs() else inputs,
                max_length=reader.max_length,
                fields=said,
            )
        case NpzReader() | ChatReader():
            return Reading(reader.reader)
        case PythonReader() | RecordReader():
            return Reading(reader.reader, run=reader.run.function)
        case ImagesReader():
            size = (reader.size[0], reader.size[1]) if reader.size else None
            values = {name: getattr(reader, name) for name in ImageReading.names() if name != "size"}
            return Reading(reader.reader, images=ImageReading(size=size, **values))
        case AudioReader():
            values = {name: getattr(reader, name) for name in AudioReading.names()}
            return Reading(reader.reader, audio=AudioReading(**values))
        case SpeechReader():
            return Reading(reader.reader, speech=SpeechReading(reader.language, reader.task, reader.steps))


def of_quantization(quantization: Quantization, *, language: bool = False) -> Scheme:
    """The scheme of a quantization, without what only calibration needs. The cache of a `language` model has 8 bits."""
    weights, block = of_weights(quantization.weights)
    assert weights is not None
    return Scheme(
        quantization.activations,
        weights,
        quantization.per_channel,
        wide_products=quantization.wide_products,
        overrides=tuple(map(_of_rule, quantization.overrides)),
        block=block,
        rounding=quantization.rounding,
        clip=quantization.clip,
        room=quantization.room if quantization.room != ROOM else None,
        states="uint8" if language else None,
    )


def _of_rule(rule: WrittenRule) -> Rule:
    weights, block = of_weights(rule.weights)
    return Rule(**{**asdict(rule), "weights": weights, "block": block})


def percentile(quantization: Quantization) -> float | None:
    """The percentile of the calibration method of that name; None with another method."""
    return quantization.percentile if quantization.method == "percentile" else None


def of_outputs(outputs: Mapping[str, OutputFile]) -> dict[str, Declared]:
    """The outputs and slices that are judged by themselves, without their thresholds."""
    return {
        label: Declared(output=output.output, slice=output.slice, choice=output.choice, tie=output.tie)
        for label, output in outputs.items()
    }


def of_target(target: Target) -> HtpTarget:
    """A target as the compiler sees it."""
    soc = catalog.resolve(target.soc)
    options = tuple(sorted(target.compiler_options.items()))
    return HtpTarget(soc.soc_model, soc.htp_arch, target.vtcm_mb, options or None)
