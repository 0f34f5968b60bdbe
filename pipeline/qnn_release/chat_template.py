"""Renders the chat template of a language model as transformers does (`utils/chat_template_utils.py`).

Templates are programs that come with a model: they run in a sandbox of jinja2. The same code renders in a build and in
an application, so that a model is calibrated and judged with the texts that it will be given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The names by which a template calls special tokens."""


class TemplateRefusedError(Exception):
    """A template that cannot be rendered. `broken` says whether it is the template, not the conversation."""

    def __init__(self, why: str, *, broken: bool) -> None:
        super().__init__(why)
        self.broken = broken


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, str],
    date: Callable[[str], str],
    *,
    answer: bool,
) -> str:
    """The text of a conversation; with `answer`, it ends where the model's answer begins.

    `tokens` are the texts of special tokens by the names of transformers, such as `bos_token`; `date` is strftime of
    the day for templates that ask for it.

    Raises:
        TemplateRefusedError: the template is not valid, or refuses the conversation.
        ImportError: jinja2 is not installed.
    """
    import jinja2
    from jinja2.exceptions import SecurityError

    try:
        compiled = _environment(date).from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateRefusedError(f"line {error.lineno}: {error.message}", broken=True) from error
    except (jinja2.TemplateError, RecursionError, MemoryError) as error:
        raise TemplateRefusedError(str(error), broken=True) from error
    given = {"messages": [*messages], "tools": None, "documents": None, "add_generation_prompt": answer, **tokens}
    try:
        return str(compiled.render(given))
    except SecurityError as error:
        raise TemplateRefusedError(str(error), broken=True) from error
    except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise TemplateRefusedError(str(error) or type(error).__name__, broken=False) from error
    except RecursionError as error:
        raise TemplateRefusedError("it calls itself without an end", broken=True) from error


def _environment(date: Callable[[str], str]) -> Any:
    import jinja2
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the answers for training; it leaves the text as it is."""

        tags = {"generation"}  # noqa: RUF012 - as the library declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    class Names(jinja2.utils.Namespace):
        """Variables of a template. Names that begin with an underscore would reach what Python keeps of an object."""

        def __init__(*given: Any, **names: Any) -> None:
            first, *more = given
            for name in dict(*more, **names):
                Names._check(name)
            jinja2.utils.Namespace.__init__(first, *more, **names)

        def __setitem__(self, name: str, value: Any) -> None:
            Names._check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def _check(name: object) -> None:
            if isinstance(name, str) and name.startswith("_"):
                raise SecurityError(f"a namespace cannot have the name {name!r}")

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["namespace"] = Names
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = date
    return environment
