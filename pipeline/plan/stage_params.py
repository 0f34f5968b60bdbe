"""Parts of a configuration as the parameters of stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pipeline.config.judging import OutputFile
from pipeline.config.load import (
    ChatReader,
    NpzReader,
    PythonFunction,
    PythonReader,
    Reader,
    RecordReader,
    Target,
    TextReader,
)
from pipeline.config.quantization import Quantization, of_weights
from pipeline.config.quantization import Rule as WrittenRule
from pipeline.contracts.measures import Declared
from pipeline.contracts.samples import Reading
from pipeline.contracts.scheme import Rule, Scheme
from pipeline.contracts.target import HtpTarget
from pipeline.qnn import catalog


def content(reader: Reader) -> tuple[Path | None, PythonFunction | None]:
    """What a reader reads on this machine: a file or folder, and a function."""
    match reader:
        case TextReader() | ChatReader():
            return reader.file, None
        case NpzReader():
            return reader.folder, None
        case PythonReader() | RecordReader():
            return reader.file, reader.run


def of_reader(reader: Reader) -> Reading:
    """A reader, without where its files are."""
    match reader:
        case TextReader():
            return Reading(reader.reader, reader.max_samples, tokenizer=reader.tokenizer, max_length=reader.max_length)
        case NpzReader() | ChatReader():
            return Reading(reader.reader, reader.max_samples)
        case PythonReader() | RecordReader():
            return Reading(reader.reader, reader.max_samples, run=reader.run.function)


def of_quantization(quantization: Quantization, *, language: bool = False) -> Scheme:
    """How numbers are stored; calibration has parameters of its own. The cache of a `language` model has 8 bits."""
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
        states="uint8" if language else None,
    )


def _of_rule(rule: WrittenRule) -> Rule:
    weights, block = of_weights(rule.weights)
    return Rule(**{**asdict(rule), "weights": weights, "block": block})


def percentile(quantization: Quantization) -> float | None:
    """What calibration leaves out with the method of that name; None with others."""
    return quantization.percentile if quantization.method == "percentile" else None


def of_outputs(outputs: Mapping[str, OutputFile]) -> dict[str, Declared]:
    """What of the outputs is judged by itself, without what it must keep to."""
    return {
        label: Declared(output=output.output, slice=output.slice, choice=output.choice, tie=output.tie)
        for label, output in outputs.items()
    }


def of_target(target: Target) -> HtpTarget:
    """A target as the compiler sees it."""
    soc = catalog.resolve(target.soc)
    return HtpTarget(soc.soc_model, soc.htp_arch, target.vtcm_mb)
