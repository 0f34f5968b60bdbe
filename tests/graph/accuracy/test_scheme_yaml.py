from __future__ import annotations

import yaml

from pipeline.contracts.scheme import Rule, Scheme
from pipeline.graph.accuracy.search.scheme_yaml import globs
from pipeline.graph.quantization.scheme_text import as_yaml

LAYERS = [f"/layer.{number}/{part}" for number in range(3) for part in ("attention/Add", "mlp/MatMul", "mlp/Add")]


def matched(patterns: tuple[str, ...], names: list[str]) -> list[str]:
    rule = Rule(nodes=patterns)
    return [name for name in names if rule.matches_node("", name)]


def test_all_names_are_one_star() -> None:
    assert globs(LAYERS, LAYERS) == ("*",)


def test_names_of_all_layers_share_a_glob() -> None:
    wanted = [name for name in LAYERS if name.endswith("mlp/MatMul")]
    assert globs(wanted, LAYERS) == ("/layer.?/mlp/MatMul",)


def test_a_whole_scope_is_one_glob() -> None:
    wanted = [name for name in LAYERS if name.startswith("/layer.1/mlp")]
    assert globs(wanted, LAYERS) == ("/layer.1/mlp/*",)


def test_the_scopes_of_all_layers_are_one_glob() -> None:
    wanted = [name for name in LAYERS if "mlp" in name]
    assert globs(wanted, LAYERS) == ("/layer.?/mlp/*",)


def test_no_glob_reaches_further_than_asked() -> None:
    names = [*LAYERS, "/layer.1/mlp/MatMul_2", "/layer.10/mlp/MatMul", "plain", "a[1].b", "a[2].b", "a[12].b"]
    for start in range(len(names)):
        for step in (1, 2, 3, 5):
            wanted = names[start::step]
            assert matched(globs(wanted, names), names) == [name for name in names if name in set(wanted)]


def test_yaml_is_what_a_configuration_takes() -> None:
    rules = (
        Rule(nodes=("/layer.*/mlp/MatMul", "odd: #name"), activations="uint16"),
        Rule(nodes=("a",), weights="int4"),
        Rule(nodes=("b",), precision="fp16"),
    )
    scheme = Scheme("uint8", "uint8", per_channel=True, overrides=rules)

    written = yaml.safe_load(as_yaml(scheme, "text encoder", {"method": "mse"}))["components"]["text encoder"][
        "quantization"
    ]

    assert written["overrides"] == [
        {"nodes": ["/layer.*/mlp/MatMul", "odd: #name"], "activations": "uint16"},
        {"nodes": ["a"], "weights": "int4"},
        {"nodes": ["b"], "precision": "fp16"},
    ]
    assert written.pop("method") == "mse"
    assert Scheme.from_json(written) == scheme


def test_yaml_without_rules() -> None:
    scheme = Scheme("uint16", "uint8", per_channel=True)
    written = yaml.safe_load(as_yaml(scheme, "net", {}))["components"]["net"]["quantization"]
    assert Scheme.from_json(written) == scheme
