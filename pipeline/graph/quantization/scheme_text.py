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
        f"      weights: {scheme.weights}",
        f"      per_channel: {json.dumps(scheme.per_channel)}",
        *(f"      {key}: {json.dumps(value)}" for key, value in calibration.items()),
        "      overrides:" if scheme.overrides else "      overrides: []",
    ]
    for rule in scheme.overrides:
        set_keys = {key: value for key, value in rule.to_json().items() if key != rule.kind and value not in (None, [])}
        lines.append(f"        - {rule.kind}:")
        lines += [f"            - {json.dumps(place, ensure_ascii=False)}" for place in rule.places]
        lines += [f"          {key}: {json.dumps(value)}" for key, value in set_keys.items()]
    return "\n".join(lines) + "\n"
