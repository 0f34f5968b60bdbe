"""A scheme as text that a configuration takes. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipeline.contracts.scheme import Scheme
from pipeline.model import Json


def as_yaml(scheme: Scheme, component: str, calibration: Mapping[str, Json]) -> str:
    """A scheme, and how its ranges were measured, as a configuration takes them in place of ``{precision: auto}``."""
    lines = [
        "components:",
        f"  {json.dumps(component)}:",
        "    quantization:",
        f"      activations: {scheme.activations}",
        f"      weights: {_weights(scheme.weights, scheme.block)}",
        f"      per_channel: {json.dumps(scheme.per_channel)}",
        f"      rounding: {scheme.rounding}",
        f"      clip: {scheme.clip}",
        f"      wide_products: {json.dumps(scheme.wide_products)}",
        *([f"      room: {scheme.room:g}"] if scheme.room is not None else []),
        *(f"      {key}: {json.dumps(value)}" for key, value in calibration.items()),
        "      overrides:" if scheme.overrides else "      overrides: []",
    ]
    for rule in scheme.overrides:
        said = {key: value for key, value in rule.to_json().items() if key not in (rule.kind, "weights", "block")}
        set_keys = {key: json.dumps(value) for key, value in said.items() if value not in (None, [])}
        if rule.weights is not None:
            set_keys["weights"] = _weights(rule.weights, rule.block)
        lines.append(f"        - {rule.kind}:")
        lines += [f"            - {json.dumps(place, ensure_ascii=False)}" for place in rule.places]
        lines += [f"          {key}: {value}" for key, value in set_keys.items()]
    return "\n".join(lines) + "\n"


def _weights(kind: str, block: int | None) -> str:
    return f"{{dtype: {kind}, block: {block}}}" if block else kind
