"""A choice of precision as a scheme that a person can read and commit: types for all, and rules for few."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from pipeline.contracts.scheme import FP16, Rule, Scheme
from pipeline.graph.accuracy.search.sensitivity import BLOCK, LOW, NARROW, REFERENCE, Choice, Trials

_LOW, _WIDE = LOW.activations, REFERENCE.activations
_NARROW, _BROAD = NARROW.weights, REFERENCE.weights

_NUMBER = re.compile(r"\d+")


def scheme_of(choice: Choice, trials: Trials) -> Scheme:
    """The scheme of a choice. What most of the nodes do is the scheme's type; rules name the others."""
    index = trials.index
    nodes = [node.name for node in index.model.graph.node]
    low = [name for number in sorted(choice.low - choice.exact) for name in trials.groups[number].nodes]
    exact = [name for number in sorted(choice.exact) for name in trials.groups[number].nodes]
    wide = [name for name in trials.group_of if name not in {*low, *exact}]
    narrow = [name for name in trials.weights if name in choice.narrow]
    broad = [name for name in trials.weights if name not in choice.narrow]
    activations, others, other = (_WIDE, low, _LOW) if len(wide) >= len(low) else (_LOW, wide, _WIDE)
    # Where weights have 4 bits by default, a table that is looked up in has 8, whatever its reader computes in.
    packed = [name for name in trials.lookups if name in choice.packed]
    tables = [name for name in trials.lookups if name not in choice.packed]
    eight = [name for name in tables if name in choice.narrow or trials.constants[name] in choice.low]
    mostly = len(broad) >= len(narrow) or len(eight) < len(tables)
    weights, constants, kind = (_BROAD, narrow, _NARROW) if mostly else (_NARROW, broad, _BROAD)
    rules = []
    if others:
        rules.append(Rule(nodes=globs(others, nodes), activations=other))
    lowered = [name for name in eight if trials.constants[name] not in choice.low] if mostly else []
    if lowered:
        rules.append(Rule(nodes=globs(_readers(lowered, trials), nodes), weights=_BROAD))
    # What computes in 16 bits has blocks, and those of the scheme's type need no rule where that is for 16 bits.
    block = trials.block if activations == _WIDE else None
    blocked = [name for name in trials.weights if name in trials.in_blocks and trials.constants[name] not in choice.low]
    if plain := [name for name in constants if name not in blocked]:
        rules.append(Rule(nodes=globs(_readers(plain, trials), nodes), weights=kind))
    for form in (_BROAD, _NARROW):
        in_blocks = [name for name in blocked if (name in choice.narrow) == (form == _NARROW)]
        if in_blocks and (form, trials.block) != (weights, block):
            # A config with 8 bit activations takes blocks where it says 16 for the same nodes.
            again = _WIDE if activations == _LOW else None
            places = globs(_readers(in_blocks, trials), nodes)
            rules.append(Rule(nodes=places, weights=form, block=trials.block, activations=again))
    if packed:
        rules.append(Rule(nodes=globs(_readers(packed, trials), nodes), weights=_NARROW, block=BLOCK))
    if len(choice.exact) == len(trials.groups):
        rules = [Rule(nodes=("*",), precision=FP16)]
    elif exact:
        rules.append(Rule(nodes=globs(exact, nodes), precision=FP16))
    overrides = tuple(rules)
    return replace(
        REFERENCE,
        activations=activations,
        weights=weights,
        block=block,
        wide_products=trials.wide_products,
        overrides=overrides,
    )


def _readers(constants: Iterable[str], trials: Trials) -> list[str]:
    return [node.name for name in constants for node in trials.index.readers[name]]


def label(choice: Choice, trials: Trials) -> str:
    """A choice in a few words: ``w8a16``, or ``12 of 40 nodes a8, 2 fp16, 3 of 9 weights w4``."""
    groups, everything = trials.groups, frozenset(range(len(trials.groups)))
    if choice.exact == everything:
        return "fp16"
    weights, tables = choice.narrow.intersection(trials.weights), choice.narrow.difference(trials.weights)
    # A table with 8 bits goes without saying where everything has.
    plain = not choice.packed and (not tables or choice.low == everything)
    alike = choice.low in (frozenset(), everything) and len(weights) in (0, len(trials.weights))
    if plain and alike and not choice.exact:
        return f"w{4 if weights else 8}a{8 if choice.low else 16}"
    low, exact = (sum(len(groups[number].nodes) for number in part) for part in (choice.low, choice.exact))
    parts = [f"{low} of {len(trials.group_of)} nodes a8"]
    parts += [f"{exact} fp16"] if exact else []
    parts += [f"{len(weights)} of {len(trials.weights)} weights w4"] if weights else []
    for count, form in ((len(tables - choice.packed), "w8"), (len(choice.packed), "w4")):
        parts += [f"{count} of {len(trials.lookups)} tables {form}"] if count else []
    return ", ".join(parts)


def globs(names: Iterable[str], everything: Collection[str]) -> tuple[str, ...]:
    """Globs that match all of `names` and none of the other names in `everything`, in the order of `names`.

    Names that differ in numbers only, as those of a model's layers do, and all names of a scope share a glob where
    that is possible.
    """
    wanted = list(dict.fromkeys(names))
    others = "\n".join(sorted(set(everything) - set(wanted)))
    if not others:
        return ("*",) if wanted else ()
    found: list[str] = []
    while wanted:
        rest = "\n".join(wanted)
        usable = [glob for glob in _wider(wanted[0]) if not _pattern(glob).search(others)]
        # Of those that match equally many, the narrowest.
        glob = max(reversed(usable), key=lambda glob: len(_pattern(glob).findall(rest)), default=wanted[0])
        found.append(glob)
        pattern = _pattern(glob)
        wanted = [name for name in wanted[1:] if not pattern.fullmatch(name)]
    return tuple(found)


def _wider(name: str) -> Iterator[str]:
    """Globs for a name, the narrowest last: any numbers in place of its own, anything in its scope, or both."""
    scope = name.rpartition("/")[0]
    for glob in (*([f"{scope}/*"] if scope else []), name):
        yield _NUMBER.sub("*", glob)
        yield _NUMBER.sub(lambda match: "?" * len(match[0]), glob)
        for match in _NUMBER.finditer(glob):
            before, after = glob[: match.start()], glob[match.end() :]
            yield f"{before}*{after}"
            yield f"{before}{'?' * len(match[0])}{after}"
        yield glob


def _pattern(glob: str) -> re.Pattern[str]:
    spelled = re.escape(glob).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(f"^{spelled}$", re.MULTILINE)
