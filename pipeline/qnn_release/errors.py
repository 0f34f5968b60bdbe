"""The errors of a release. A message says what went wrong, where, why, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping


class ReleaseError(Exception):
    """Base of all errors: what went wrong, where, why, and what to do next. All but `what` may be ""."""

    def __init__(self, what: str, *, where: str = "", why: str = "", next: str = "") -> None:  # noqa: A002 - its label
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.next = next

    def __str__(self) -> str:
        labelled = (("where", self.where), ("why", self.why), ("next", self.next))
        return "\n".join([self.what, *(f"  {label}: {text}" for label, text in labelled if text)])


class FormatError(ReleaseError):
    """This is no release, one of another version, or one that is not safe to unpack."""


class DamagedError(ReleaseError):
    """A file is missing, or is not the one that release.json names. It was not loaded."""


class TargetError(ReleaseError):
    """No target of the release fits the device, and running on the CPU instead is refused or impossible."""


class LoadError(ReleaseError):
    """A model can't be loaded, and running on the CPU instead is refused or impossible."""


class InputError(ReleaseError, ValueError):
    """The inputs are not what the component takes. Nothing was run."""


class TooLongError(InputError):
    """An input is longer than the largest bucket; `lengths` is what was given, `limits` the largest bucket's axes."""

    def __init__(self, component: str, lengths: Mapping[str, int], limits: Mapping[str, int], next: str) -> None:  # noqa: A002
        super().__init__(
            f"the input is too long for every bucket of {component}: {spelled(lengths)}",
            where=component,
            why=f"the largest bucket is {spelled(limits)}",
            next=next,
        )
        self.lengths = dict(lengths)
        self.limits = dict(limits)


class ArgumentError(ReleaseError, ValueError):
    """An argument is wrong whatever the release is."""


class ClosedError(ReleaseError):
    """The release was closed."""


class RunError(ReleaseError):
    """A model that was loaded failed to run, or returned something else than release.json says."""


class FallbackWarning(UserWarning):
    """Something runs on the CPU that was meant for the NPU."""


class RangeWarning(UserWarning):
    """An input has numbers beyond all that the release was calibrated with."""


def spelled(axes: Mapping[str, int]) -> str:
    """Axis lengths as messages show them: `sequence 140, batch 1`."""
    return ", ".join(f"{axis} {length}" for axis, length in axes.items()) or "no axes"
