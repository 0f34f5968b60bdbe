"""Chat templates are rendered as transformers renders them, and refused in words that say what is wrong."""

from __future__ import annotations

import time

import pytest

from pipeline.graph.language import names
from pipeline.qnn_release.chat_template import TOKEN_NAMES, TemplateRefusedError, render
from tests.support.chat_templates import MESSAGES, REFUSED, TEMPLATES, TOKENS


@pytest.mark.parametrize(("template", "answer", "text"), TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_is_rendered_as_transformers_does(template: str, answer: bool, text: str) -> None:
    assert render(template, MESSAGES, TOKENS, time.strftime, answer=answer) == text


@pytest.mark.parametrize(("template", "broken"), REFUSED.values(), ids=REFUSED)
def test_a_template_is_refused_with_the_reason(template: str, broken: bool) -> None:
    with pytest.raises(TemplateRefusedError) as error:
        render(template, MESSAGES, TOKENS, time.strftime, answer=False)
    assert str(error.value)
    assert error.value.broken == broken


def test_the_line_of_a_mistake_is_told() -> None:
    with pytest.raises(TemplateRefusedError, match="line 2: "):
        render("{{ bos_token }}\n{% if %}", MESSAGES, TOKENS, time.strftime, answer=False)


def test_a_template_that_asks_for_the_day_is_given_it() -> None:
    day = "{{ strftime_now('%Y') }}"
    assert render(day, MESSAGES, TOKENS, lambda form: f"<{form}>", answer=False) == "<%Y>"


def test_a_build_and_an_application_have_the_same_names_for_tokens() -> None:
    assert names.TOKEN_NAMES == TOKEN_NAMES  # the runtime imports nothing of the build
