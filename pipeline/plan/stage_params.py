"""Parts of a configuration as the parameters of stages: JSON values that enter keys."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pipeline.config import (
    NpzReader,
    PythonFunction,
    PythonReader,
    Reader,
    RecordReader,
    Target,
    TextReader,
)
from pipeline.config_quantization import Quantization, Rule
from pipeline.model import Json
from pipeline.qnn import catalog


def content(reader: Reader) -> tuple[Path | None, PythonFunction | None]:
    """What a reader reads on this machine: a file or folder, and a function."""
    match reader:
        case TextReader():
            return reader.file, None
        case NpzReader():
            return reader.folder, None
        case PythonReader() | RecordReader():
            return reader.file, reader.run


def of_reader(reader: Reader) -> dict[str, Json]:
    """A reader, without where its files are."""
    params: dict[str, Json] = {"reader": reader.reader, "max_samples": reader.max_samples}
    match reader:
        case TextReader():
            return params | {"tokenizer": reader.tokenizer, "max_length": reader.max_length}
        case NpzReader():
            return params
        case PythonReader() | RecordReader():
            return params | {"run": reader.run.function}


def of_quantization(quantization: Quantization) -> dict[str, Json]:
    """How numbers are stored; calibration has parameters of its own."""
    return {
        "activations": quantization.activations,
        "weights": quantization.weights,
        "per_channel": quantization.per_channel,
        "wide_products": quantization.wide_products,
        "overrides": [_rule(rule) for rule in quantization.overrides],
    }


def of_method(quantization: Quantization) -> dict[str, Json]:
    """How calibration makes ranges."""
    chosen: dict[str, Json] = {"method": quantization.method}
    return chosen | ({"percentile": quantization.percentile} if quantization.method == "percentile" else {})


def of_target(target: Target) -> dict[str, Json]:
    """A target as the compiler sees it."""
    soc = catalog.resolve(target.soc)
    return {"soc_model": soc.soc_model, "htp_arch": soc.htp_arch, "vtcm_mb": target.vtcm_mb}


def _rule(rule: Rule) -> Json:
    """A rule with all its keys, those that are not written as null or empty."""
    places: dict[str, Json] = {"ops": [], "nodes": [], "tensors": [], "precision": None}
    return places | {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(rule).items()}
