"""Only the models that a command line is about are planned."""

from __future__ import annotations

import pytest

from pipeline.command_line import parse
from pipeline.errors import ConfigError
from pipeline.plan.about import check_names, models_about

MODELS = {"demo", "demo2", "minilm"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("list", set()),
        ("list --all", MODELS),
        ("list build:demo", MODELS),
        ("-n 2 list", MODELS),
        ("", MODELS),
        ("build", MODELS),
        ("build models=demo", MODELS),
        ("gc", MODELS),
        ("clean build:demo", MODELS),
        ("build:demo", {"demo"}),
        ("-n 2 build:demo", {"demo"}),
        ("run build:demo package:minilm", {"demo", "minilm"}),
        ("build:demo gc", MODELS),
        ("build:demo*", {"demo", "demo2"}),
        ("build:dem?", {"demo", "demo2"}),
        ("build:[dm]*", MODELS),
        ("context:demo/encoder/*/sm8650", {"demo"}),
        ("context:*sm8650", MODELS),
        ("context:demo", {"demo"}),
        ("build:nothing", set()),
    ],
)
def test_the_models_that_a_command_line_is_about(line: str, expected: set[str]) -> None:
    assert models_about(parse(line.split()), MODELS) == expected


def test_a_name_without_a_step_is_refused_with_the_nearest_of_all_steps() -> None:
    every = ("context:demo/a/32/x", "context:minilm/a/32/x")
    check_names(["build:demo", "context:demo/*", "gc", "unheard:of"], every[:1], MODELS, lambda: every)
    with pytest.raises(ConfigError, match=r"'context:minilm/a/23/x'; did you mean 'context:minilm/a/32/x'"):
        check_names(["context:minilm/a/23/x"], (), MODELS, lambda: every)
    with pytest.raises(ConfigError, match="'build:dmo'; did you mean 'build:demo'"):
        check_names(["build:dmo"], (), MODELS, lambda: every)
