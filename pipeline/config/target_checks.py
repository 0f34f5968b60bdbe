"""Checks, before anything runs, that quantization as configured makes sense and that every target can compute it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.config.quantization import Auto, BlockWeights, Fp16, Quantization, Rule, TensorsRule, Weights
from pipeline.config.yaml.problems import Keys, Problems
from pipeline.config.yaml.tree import Node, place_of
from pipeline.contracts.scheme import BLOCKS
from pipeline.qnn import catalog
from pipeline.qnn.target import BLOCKS_HTP_ARCH, FLOAT16_HTP_ARCH, WIDE_PRODUCTS_HTP_ARCH

Written = Quantization | Fp16 | Auto


def check(components: Mapping[str, Written], socs: Sequence[str], node: Node, problems: Problems) -> None:
    """Add a problem for everything that is wrong with the quantization of `components`, for targets on `socs`."""
    targets = [catalog.resolve(soc) for soc in socs]
    seen: set[tuple[str, str]] = set()
    for name, quantization in components.items():
        for key, what, expected in _problems(quantization, targets):
            keys = _keys(name, key, node)
            about = f"component '{name}' " if what.startswith("can't") else ""
            if (str(place_of(node, keys)), what) not in seen or about:
                problems.add(place_of(node, keys), keys, about + what, expected=expected)
            seen.add((str(place_of(node, keys)), what))


def _keys(component: str, key: Keys, node: Node) -> Keys:
    """The path of a key of a component's quantization, which is written with the component or with the model."""
    own: Keys = ("components", component, "quantization")
    has_own = place_of(node, (*own, *key)) != place_of(node, own[:2])
    return (*own, *key) if has_own else ("quantization", *key)


def _problems(quantization: Written, targets: Sequence[catalog.Soc]) -> Iterator[tuple[Keys, str, str]]:
    """The problems, each as the key, what is wrong with it, and what is expected."""
    match quantization:
        case Fp16():
            yield from _float16(("precision",), targets)
        case Quantization():
            yield from _method(quantization)
            for soc in targets if quantization.wide_products else ():
                if soc.htp_arch < WIDE_PRODUCTS_HTP_ARCH:
                    what = f"can't multiply 16 by 16 bits on {soc.name}, whose HTP is v{soc.htp_arch}"
                    yield ("wide_products",), what, f"targets from HTP v{WIDE_PRODUCTS_HTP_ARCH} on"
            yield from _wide_weights((), quantization.weights, targets)
            yield from _blocks((), quantization.weights, quantization.activations, quantization.per_channel, targets)
            for number, rule in enumerate(quantization.overrides):
                yield from _wide_weights(("overrides", number), rule.weights, targets)
                activations = rule.activations or quantization.activations
                per_channel = quantization.per_channel if rule.per_channel is None else rule.per_channel
                yield from _blocks(("overrides", number), rule.weights, activations, per_channel, targets)
                yield from _rule(("overrides", number), rule, targets)


def _blocks(
    keys: Keys, weights: Weights | None, activations: str, per_channel: bool, targets: Sequence[catalog.Soc]
) -> Iterator[tuple[Keys, str, str]]:
    if not isinstance(weights, BlockWeights):
        return
    if weights.block not in BLOCKS:
        yield (*keys, "weights", "block"), f"number {weights.block}", " or ".join(map(str, BLOCKS))
    if activations == "uint8":
        what = "blocks of weights exclude activations of 8 bits: QNN's kernel for blocks takes 16 alone"
        yield (*keys, "weights"), what, "activations: uint16, or weights without block"
    if not per_channel:
        what = "blocks of weights exclude per_channel: false: every block of a channel has a scale"
        yield (*keys, "weights"), what, "per_channel: true, or weights without block"
    for soc in targets:
        if soc.htp_arch < BLOCKS_HTP_ARCH:
            what = f"can't have weights in blocks on {soc.name}, whose HTP is v{soc.htp_arch}"
            yield (*keys, "weights"), what, f"targets from HTP v{BLOCKS_HTP_ARCH} on"


def _wide_weights(
    keys: Keys, weights: Weights | None, targets: Sequence[catalog.Soc]
) -> Iterator[tuple[Keys, str, str]]:
    for soc in targets if weights == "int16" else ():
        if soc.htp_arch < WIDE_PRODUCTS_HTP_ARCH:
            what = f"can't have 16 bit weights on {soc.name}, whose HTP is v{soc.htp_arch}"
            yield (*keys, "weights"), what, f"targets from HTP v{WIDE_PRODUCTS_HTP_ARCH} on"


def _method(quantization: Quantization) -> Iterator[tuple[Keys, str, str]]:
    if not 50 < quantization.percentile <= 100:
        yield ("percentile",), f"{quantization.percentile:g}", "more than 50 and at most 100, such as 99.99"


def _rule(keys: Keys, rule: Rule, targets: Sequence[catalog.Soc]) -> Iterator[tuple[Keys, str, str]]:
    types = (rule.activations, rule.weights, rule.per_channel)
    precision = None if isinstance(rule, TensorsRule) else rule.precision
    if precision is None and all(each is None for each in types):
        choices = "activations, weights, per_channel" + ("" if isinstance(rule, TensorsRule) else ", precision")
        yield keys, "changes nothing", f"one of {choices}"
    if precision is not None:
        if any(each is not None for each in types):
            yield (*keys, "precision"), "excludes types: these nodes stay in float", "precision alone"
        yield from _float16((*keys, "precision"), targets)


def _float16(keys: Keys, targets: Sequence[catalog.Soc]) -> Iterator[tuple[Keys, str, str]]:
    for soc in targets:
        if not soc.computes_float16:
            expected = f"targets from HTP v{FLOAT16_HTP_ARCH} on, or quantization to integers"
            yield keys, f"can't be fp16 on {soc.name}, whose HTP is v{soc.htp_arch}", expected
