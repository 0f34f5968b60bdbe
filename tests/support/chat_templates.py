# ruff: noqa: E501 - a template is one text
"""Chat templates with the features that templates of published models use, and the texts that transformers makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAID = 'it\'s <b> é & "q"'
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": SAID}, {"role": "assistant", "content": "yes"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
_LOOP = "{% for m in messages %}"

TEMPLATES: Mapping[str, tuple[str, bool, str]] = {
    "generation": (f"{_LOOP}{{% generation %}}{{{{ m.content }}}}|{{% endgeneration %}}{{% endfor %}}", False, f"{SAID}|yes|"),
    "generation with blanks": (
        f"{_LOOP}\n  {{%- generation -%}}\n a {{{{ m.role }}}} {{%- endgeneration %}}\n{{% endfor %}}", False,
        "a usera assistant",
    ),
    "a variable inside of generation": (
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", False, "21",
    ),
    "break": (f"{_LOOP}{{{{ m.role }}}}{{% break %}}{{% endfor %}}", False, "user"),
    "continue": (f"{_LOOP}{{% if loop.first %}}{{% continue %}}{{% endif %}}{{{{ m.role }}}}{{% endfor %}}", False, "assistant"),
    "tojson": ("{{ messages[0] | tojson }}", False, '{"role": "user", "content": "it\'s <b> é & \\"q\\""}'),
    "tojson, indented": ("{{ {'b': 1, 'a': 'é'} | tojson(indent=2) }}", False, '{\n  "b": 1,\n  "a": "é"\n}'),
    "tojson, sorted": (
        "{{ {'b': 1, 'a': [1]} | tojson(sort_keys=true, separators=(',', ':')) }}", False, '{"a":[1],"b":1}',
    ),
    "tojson in ASCII": ("{{ 'é' | tojson(ensure_ascii=true) }}", False, '"\\u00e9"'),
    "no escapes": ("{{ messages[0].content }}", False, SAID),
    "blocks and blanks": (f"\n{_LOOP}\n  {{{{ m.role }}}}\n  {{% if m.role == 'user' %}}\nu\n  {{% endif %}}\n{{% endfor %}}\nend\n",
                          False, "\n  user\nu\n  assistant\nend"),
    "an answer is asked for": ("{% if add_generation_prompt %}A:{% endif %}", True, "A:"),
    "no answer is asked for": ("{% if add_generation_prompt %}A:{% endif %}", False, ""),
    "special tokens": ("{{ bos_token }}x{{ eos_token }}{{ unk_token }}", False, "<s>x</s>"),
    "a token that is not there": ("{{ 'yes' if pad_token is defined else 'no' }}", False, "no"),
    "no tools": ("{% if tools %}t{% elif documents %}d{% else %}n{% endif %}{{ tools is none }}", False, "nTrue"),
    "a namespace": (
        f"{{% set ns = namespace(n=0) %}}{_LOOP}{{% set ns.n = ns.n + 1 %}}{{% endfor %}}{{{{ ns.n }}}}", False, "2",
    ),
    "a macro": ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[0].role) }}", False, "[user]"),
    "slices and methods": ("{{ messages[::-1][0].content.upper() }}{{ ' a '.strip() }}", False, "YESa"),
    "dict": ("{{ dict(a=1)['a'] }}{{ dict.fromkeys(['x'], 2)['x'] }}", False, "12"),
}  # fmt: skip
"""By the feature: the template, whether an answer is asked for, and the text."""

REFUSED: Mapping[str, tuple[str, bool]] = {
    "an exception": ("{{ raise_exception('roles must alternate') }}", False),
    "something undefined": ("{{ nothing.of_this }}", False),
    "a private attribute": ("{{ ''.__class__.__mro__ }}", True),
    "a changed list": ("{{ messages.append(1) }}", True),
    "a private name in a namespace": ("{% set ns = namespace(_a=1) %}{{ ns._a }}", True),
    "a tag that nobody knows": ("{% nonsense %}", True),
    "an open block": ("{% if x %}", True),
    "a filter that nobody knows": ("{{ 'a' | nonsense }}", True),
}
"""By the reason: the template, and whether it is the template that is wrong, not the conversation."""
