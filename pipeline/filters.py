"""Filters of the command line: `doit build models=a,b targets=x`."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.errors import ConfigError
from pipeline.suggest import did_you_mean


def choose(variables: Mapping[str, str], known: Mapping[str, list[str]]) -> dict[str, set[str]]:
    """The names that each filter chose of those that are known; all of them where it is not given.

    Raises:
        ConfigError: a variable that is no filter, or a name that no config has.
    """
    for name in variables:
        if name not in known:
            raise ConfigError(
                f"unknown variable '{name}'{did_you_mean(name, known)}",
                where=f"command line: {name}={variables[name]}",
                remedy=f"the variables are {' and '.join(f'{filter_}=…' for filter_ in known)}",
            )
    chosen = {}
    for filter_, names in known.items():
        given = [name for name in variables.get(filter_, "").split(",") if name]
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"{filter_}={name}: no config has that{did_you_mean(name, names)}",
                    where="command line",
                    remedy=f"known {filter_}: {', '.join(names)}",
                )
        chosen[filter_] = set(given or names)
    return chosen
