"""A first config while it is found out what the model takes: written, tried without samples, and written anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeline.build.bring import bring_up_to_date
from pipeline.build.crew import Crew
from pipeline.config.load import ModelConfig, load
from pipeline.errors import ConfigError, ModelError, PipelineError, WaitingError, WorkerError
from pipeline.plan.planner import plan
from pipeline.plan.steps import Step
from pipeline.plan.workspace import Workspace
from pipeline.propose.proposal import Choices
from pipeline.store.durable import disk_errors

_TRIED = ("fetch", "ingest", "shape", "rewrite")


class Draft:
    """A config in its file. `made` is what it says, `spelled` makes the text of that and of what refuses it.

    Who edits the file meanwhile keeps what he wrote.
    """

    def __init__(
        self,
        path: Path,
        made: Choices,
        spelled: Callable[[Choices, Sequence[str]], str],
        workspace: Workspace,
        say: Callable[[str], None],
    ) -> None:
        """Write it; raises ConfigError if the file is there."""
        self.made = made
        self._path, self._spelled, self._workspace, self._say = path, spelled, workspace, say
        self._text = spelled(made, ())
        write_new(path, self._text)

    def put(self, made: Choices, refused: Sequence[str] = ()) -> bool:
        """Write it anew; returns whether it was."""
        if self._path.read_text("utf-8") != self._text:
            return False
        self.made, self._text = made, self._spelled(made, refused)
        self._path.write_text(self._text, "utf-8", newline="\n")
        return True

    def fits(self, made: Choices) -> bool:
        """Write it anew if nothing is refused then."""
        before = self.made
        if not self.put(made):
            return False
        if not tried(self._path, self._workspace):
            return True
        self.put(before)
        return False

    def shorten(self) -> bool:
        """Look for a length that the model takes, where it takes none of those that the draft has."""
        whole, axis = self.made, self.made.length
        if axis is None:
            return False
        too_long: int = whole.buckets[axis].value[0]
        length = too_long // 2
        while length > 1 and not self._takes(whole, length):  # a length of 1 fits by broadcasting
            too_long, length = length, length // 2
        if length > 1:
            self._end(whole, length, too_long)
        return length > 1

    def leave_out_larger(self) -> None:
        """Leave out buckets that the model has no shapes for, as where a table of positions ends before."""
        refused = self._too_large()
        if not refused:
            return
        whole, axis = self.made, self.made.length
        shorter = whole.leaving_out(refused)
        if axis is None:
            self.put(shorter)
        else:
            self._end(whole, max(shorter.buckets[axis].value), min(sizes[axis] for sizes in refused))

    def _takes(self, whole: Choices, length: int) -> bool:
        self._say(f"trying a length of {length}")
        return self.fits(whole.up_to(length, alone=True))

    def _end(self, whole: Choices, length: int, too_long: int) -> None:
        """Let buckets end at the longest that fits: from `length`, which does, up to one that is too long."""
        while too_long - length > 1:
            middle = (length + too_long) // 2
            if self._takes(whole, middle):
                length = middle
            else:
                too_long = middle
        if not self.fits(whole.up_to(length)):
            self.put(whole.up_to(length, alone=True))

    def _too_large(self) -> list[Mapping[str, int]]:
        """The buckets but the smallest that the model has no shapes for."""
        config = load(self._path)
        steps = [step for step in plan(config) if step.stage == "shape" and step.bucket in config.buckets[1:]]
        crew, found = Crew(self._workspace, steps), list[Mapping[str, int]]()
        try:
            for step in steps:
                self._say(f"trying {step.id}")
                try:
                    bring_up_to_date(step, self._workspace, crew)
                except (WaitingError, WorkerError):  # this host may not run it, or what it needs
                    break
                except ModelError:
                    if step.bucket is not None:
                        found.append(step.bucket.axes)
        finally:
            crew.close()
        return found


def tried(path: Path, workspace: Workspace, say: Callable[[str], None] = lambda _: None) -> dict[str, PipelineError]:
    """Errors of the steps that need no samples, by their names, one for each component at most."""
    config = load(path)
    steps = [step for step in plan(config) if _is_tried(step, config)]
    crew, failed, errors = Crew(workspace, steps), set[str | None](), dict[str, PipelineError]()
    try:
        for step in steps:
            if {step.component, None} & failed:
                continue
            say(f"trying {step.id}")
            try:
                bring_up_to_date(step, workspace, crew)
            except WaitingError:
                break
            except PipelineError as error:
                failed.add(step.component)
                errors[step.id] = error.at(step.id)
    finally:
        crew.close()
    return errors


def write_new(path: Path, text: str) -> None:
    """Write a config; raises ConfigError if it is there already, or can't be written."""
    with disk_errors(path, f"configs/{path.name} can't be written"):
        path.parent.mkdir(exist_ok=True)
        try:
            stream = path.open("x", encoding="utf-8", newline="\n")
        except FileExistsError:
            raise ConfigError(f"configs/{path.name} is there already", remedy="take another name") from None
        try:
            with stream:
                stream.write(text)
        except OSError:  # part of a config would be refused by every command that reads all of them
            path.unlink(missing_ok=True)
            raise


def _is_tried(step: Step, config: ModelConfig) -> bool:
    """Whether a step needs no samples, and is of the smallest bucket where it is of one."""
    return step.stage in _TRIED and step.bucket in (None, config.buckets[0]) and step.name.count("/calibration") == 0
