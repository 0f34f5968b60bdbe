"""Writes forms as JSON Schema, draft 2020-12, for editors that complete and check YAML as it is typed.

The schema accepts everything that decoding accepts. Decoding also checks what a schema can't express: that code is in a
certain folder, that a name is in the catalogue, and that values do not contradict each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipeline.config.yaml.docstrings import attribute_docs, summary
from pipeline.config.yaml.field_types import (
    Field,
    Flag,
    Form,
    Integer,
    ListOf,
    MapOf,
    Number,
    Numbers,
    OneOf,
    OneWord,
    Record,
    Size,
    Text,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(form: Record, *, title: str) -> dict[str, Any]:
    """The schema of a document that is one record. Records in it are under `$defs`, by the names of their classes."""
    definitions: dict[str, dict[str, Any]] = {}
    body = _record(form, definitions)
    return {"$schema": DIALECT, "title": title, **body, "$defs": dict(sorted(definitions.items()))}


def plain(value: object) -> Any:
    """A default as it would be written in YAML."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def _schema(form: Form, definitions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    match form:
        case Text(pattern=pattern):
            return {"type": "string"} | ({"pattern": f"^(?:{pattern.regex})$"} if pattern else {})
        case OneWord(values=values):
            return {"enum": [*values]}
        case Integer(bounds=bounds):
            return {"type": "integer"} | ({"minimum": bounds.low, "maximum": bounds.high} if bounds else {})
        case Number():
            return {"type": "number"}
        case Numbers():
            return {"type": ["number", "boolean", "array"]}
        case Flag():
            return {"type": "boolean"}
        case ListOf(item=item, size=size, distinct=distinct):
            schema = {"type": "array", "items": _schema(item, definitions)} | _size(size, "Items")
            return schema | ({"uniqueItems": True} if distinct else {})
        case MapOf(key=key, value=value, size=size):
            names, entries = _schema(key, definitions), _schema(value, definitions)
            schema = {"type": "object", "propertyNames": names, "additionalProperties": entries}
            return schema | _size(size, "Properties")
        case Record(type=cls):
            if cls.__name__ not in definitions:
                definitions[cls.__name__] = {}  # holds the name while the record's own fields are walked
                definitions[cls.__name__] = _record(form, definitions)
            return {"$ref": f"#/$defs/{cls.__name__}"}
        case OneOf(forms=forms):
            return {"anyOf": [_schema(form, definitions) for form in forms]}


def _record(form: Record, definitions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    docs = attribute_docs(form.type)
    properties = {name: _field(field, docs[name], definitions) for name, field in form.fields.items()}
    required = [name for name, field in form.fields.items() if field.required]
    schema: dict[str, Any] = {"description": summary(form.type), "type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema | {"additionalProperties": False}


def _field(field: Field, doc: str, definitions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    schema = _schema(field.form, definitions) | {"description": doc}
    if not field.required and field.default is not None:
        schema["default"] = plain(field.default)
    return schema


def _size(size: Size | None, of: str) -> dict[str, Any]:
    bounds = {f"min{of}": size.low, f"max{of}": size.high} if size else {}
    return {name: bound for name, bound in bounds.items() if bound is not None}
