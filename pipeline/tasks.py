"""The doit face: steps as doit tasks and command-line filters. Only this module and `doit_adapter` import doit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import doit.cmd_run
import doit.dependency
from doit.exceptions import TaskFailed
from doit.task import Task

from pipeline import command_line
from pipeline.build import interrupt
from pipeline.build.crew import Crew, cores
from pipeline.build.gated_steps import GatedSteps
from pipeline.command_line import CommandLine
from pipeline.config import project_file
from pipeline.config.file_names import model_names
from pipeline.config.load import ModelConfig, load_healthy
from pipeline.doit_adapter import Removal, Runner, check_options, group, reported, say, task
from pipeline.errors import ConfigError, PipelineError
from pipeline.plan import hosts
from pipeline.plan.about import check_names, check_words, models_about, models_read, names_stages
from pipeline.plan.compile_order import compiled_after
from pipeline.plan.planner import plan, plan_all
from pipeline.plan.steps import ON_DEMAND, Step
from pipeline.plan.workspace import Workspace
from pipeline.project_commands import ENGINE, ProjectCommand, choose, commands, engine
from pipeline.propose.bucket_planning import LENGTHS, BucketPlanning
from pipeline.release.commands import check_signing_key, nothing_to_package, remove_archives
from pipeline.release.commands import needed as needed_to_package
from pipeline.release.published import artifacts
from pipeline.release.published.publishing import Publishing, shares_binaries
from pipeline.report import run_record
from pipeline.report.account import Account
from pipeline.report.output_stream import end_with_reader
from pipeline.report.page.write import built_models, remove_page, write_pages
from pipeline.report.reporter import Given, Reporter, refuse
from pipeline.report.run_report import RunRecord
from pipeline.report.summary import Ran
from pipeline.report.unchanged import Keeper, Unchanged, may_skip
from pipeline.stage_table import STAGES
from pipeline.store import database
from pipeline.store.durable import disk_errors
from pipeline.store.manifests import read_manifest
from pipeline.upkeep import commands as upkeep
from pipeline.upkeep.doctor.guard import Guard

_LOOKS_AT_EACH = ("help", "info", "list")  # commands of doit that are of use for some configs while another is wrong
REPORT = "report.txt"
"""The file of a step's output that is written for a reader."""
Command = dict[str, Any]
"""A task of shell commands, as doit takes it."""


class Project:
    """The models of one checkout, narrowed by the command line, as doit tasks."""

    def __init__(self, root: Path, line: CommandLine) -> None:
        self.workspace = Workspace.at(root)
        unchanged = self._unchanged = Unchanged(root)
        variables = {name: value for name, value in line.variables.items() if name != ENGINE}
        folder = root / "configs"
        self._models = {*model_names(folder)}
        self._explains = line.command == "help" or line.asks_for_help
        check_words(line, self._models)
        configs, self.refusal = load_healthy(folder, None if variables else models_read(line, folder))
        if self.refusal is not None and not (line.command in _LOOKS_AT_EACH or [*line.names] == ["fsck"]):
            raise self.refusal
        self.workspace = self.workspace.configured(project_file.load(folder))
        targets = sorted({target.soc for config in configs.values() for target in config.targets})
        chosen = choose(variables, {"models": sorted(configs), "targets": targets}, line.names)
        self.configs = {name: config for name, config in configs.items() if name in chosen["models"]}
        self._given, self._targets = line.rest, chosen["targets"]
        self._named, self.is_whole = "models" in variables, not variables
        about = models_about(line, self.configs)
        if self.workspace.project.settings.stages and not about:
            about = {*self.configs}  # who names no model hears of every rule that no host could meet
        self._keeper = Keeper(unchanged, self.workspace) if may_skip(line, variables) else None
        names = [name for name in self.configs if name in about]
        self.unchanged: Mapping[str, Account] = {}
        if self._keeper and not self.workspace.project.settings.stages:  # rules are held against each step
            self.unchanged = unchanged.accounts(names, self.workspace)
        self._planned = {name: self.configs[name] for name in names if name not in self.unchanged}
        self.steps = {step.id: step for step in plan_all(self._planned.values()) if self._wanted(step)}
        self._by_stage: dict[str, list[Step]] = {stage: [] for stage in STAGES}
        self._built: dict[str, list[Step]] = {name: [] for name in self.configs}
        for step in self.steps.values():
            self._by_stage[step.stage].append(step)
            if step.stage not in ON_DEMAND:
                self._built[step.config.name].append(step)
        hosts.check(self.steps.values(), self.workspace.project)
        self.crew = Crew(self.workspace, self.steps.values())
        self.crew.cluster = engine(line.variables, self.workspace)
        self.guard = Guard(self.workspace)
        self.announce: Callable[[Step], None] = lambda _: None
        self.announce_end: Callable[[Step], None] = lambda _: None
        self._gated = GatedSteps(self.steps, self.workspace, self.crew, self._shown)
        self._publishing = Publishing(self.workspace, self._gated, self._built, is_whole="targets" not in variables)
        self._compiles_late = not (names_stages(line) or self.crew.cluster or self.workspace.project.settings.stages)
        self.results, self.missed, self.waiting = self._gated.results, self._gated.missed, self._gated.waiting
        self.session = upkeep.StoreSession(self.workspace)
        self.status = ConfigError.exit_code if self.refusal is not None else 0
        self._checks: dict[str, Callable[[Sequence[str], Mapping[str, Any]], None]] = {}
        talking = {name for name, config in self.configs.items() if config.language}
        every = (step for config in self.configs.values() for step in plan(config) if self._wanted(step))
        check_names(line, self.steps, self._models, talking, lambda: (step.id for step in every))

    def tasks(self, stage: str) -> Iterator[Task]:
        """The task of each step of a stage, and one for all but those of on_request models that nobody names."""
        steps = self._by_stage[stage]
        yield group(stage, STAGES[stage].doc, [step.id for step in steps if self._named or not step.config.on_request])
        for step in steps:
            yield task(
                step.id,
                stage,
                doc=f"{stage} of {step.name}",
                actions=[(reported, [partial(self._gated.bring, step)])],
                file_dep=[self.workspace.current_name(name) for name in step.after],
                task_dep=compiled_after(step, self.steps) if self._compiles_late else [],
                targets=[self.workspace.current_name(step.id)],
                uptodate=[partial(self._is_current, step)],
            )

    def stage_creators(self) -> dict[str, Callable[[], Iterator[Task]]]:
        """The functions that doit calls for the tasks of each stage, by the names that it looks for."""

        def creator(stage: str) -> Callable[[], Iterator[Task]]:
            return lambda: self.tasks(stage)

        return {f"task_{stage}": creator(stage) for stage in STAGES}

    def build_tasks(self) -> Iterator[Task]:
        """`build`, which is all models but those marked on_request, and `build:<model>` for each."""
        looked_at = {*self._planned, *self.unchanged}
        built = [name for name, each in self.configs.items() if self._named or not each.on_request]
        doc = "Build every model but those on request: doit [-n STEPS] build[:MODEL] [models=A,B] [targets=sm8650,…]."
        more = command_line.BUILD_HELP if self._explains else ""
        yield group("build", doc, [f"build:{name}" for name in built if name in looked_at], more=more)
        for name in self.unchanged:
            yield task(f"build:{name}", "build", doc=f"build artifacts/{name}", actions=[], uptodate=[True])
        for name, config in self._planned.items():
            steps = self._steps_of(config)
            yield task(
                f"build:{name}",
                "build",
                doc=f"build artifacts/{name}" + (" (on request)" if config.on_request else ""),
                actions=[(reported, [partial(self._publish, config)])],
                task_dep=[step.id for step in steps],
                uptodate=[partial(self._is_published, config)],
                clean=[Removal(self._clean, [name])],
            )

    def package_tasks(self) -> Iterator[Task]:
        """`package`, which is all models that have a release but those marked on_request, and `package:<model>`."""
        doc = "Make a release of each model whose config has one: one archive, or one for each target."
        released = [f"package:{config.name}" for config in self._released()]
        said = [] if released else [(say, [nothing_to_package(self.configs.values())])]
        yield group("package", doc, released, said)
        for name, config in self._planned.items():
            before, _ = needed_to_package(config, self._steps_of(config))
            doc, run = f"make releases of artifacts/{name}", partial(self._package, config)
            yield task(f"package:{name}", "package", doc=doc, actions=[(reported, [run])], task_dep=before)

    def bucket_tasks(self) -> Iterator[Task]:
        """`buckets:<model>`, which says what buckets would serve a model best."""
        doc = "Say which buckets would serve a model's lengths best: doit buckets:MODEL [--lengths FILE]."
        yield group("buckets", doc, [])
        for name, config in self.configs.items():
            planning = BucketPlanning(config, self._steps_of(config), self.workspace)
            actions = [lambda lengths, planning=planning: reported(partial(planning.print_plans, lengths))]
            before = planning.needed(self._given)
            doc = f"plan the buckets of {name}"
            yield task(f"buckets:{name}", "buckets", doc=doc, actions=actions, params=[LENGTHS], task_dep=before)

    def command_tasks(self) -> Iterator[Task]:
        """The commands that are no steps, one task for each."""
        models = [(config, self._steps_of(config)) for config in self._planned.values()]
        for command in commands(models, self._released(), self._targets, self.workspace, self.session, self._given):
            takes = {"pos_arg": "given"} if command.takes_names else {}
            self._checks[command.name] = command.check
            yield task(
                command.name,
                command.name.partition(":")[0] if ":" in command.name else "",
                doc=command.doc,
                actions=[self._action(command)],
                params=[*command.options],
                task_dep=[*command.before],
                **takes,
            )

    def open(self, given: Mapping[str, Given], steps: Collection[str]) -> None:
        """Check what commands were given, open the store, let the guard look at the steps. Raises PipelineError."""
        for command, (names, options) in given.items():
            task, _, _ = command.partition(":")
            if task == "package":
                check_signing_key()
            elif task in self._checks:
                self._checks[task](names, options)
        self.session.open(given)
        for keeps in (self.guard, self._gated):
            keeps.expect(step for name, step in self.steps.items() if name in steps)

    def close(self) -> None:
        """Let go of the store."""
        self.session.close()

    def manifests(self) -> dict[str, Any]:
        """What every step produced last, by step id."""
        found = {step.id: read_manifest(self.workspace.current(step)) for step in self.steps.values()}
        return {name: manifest for name, manifest in found.items() if manifest is not None}

    def tell_removed(self) -> None:
        """Tell of artifacts that are of no config any more: they may be in use, and stay."""
        if self.is_whole:
            for path in artifacts.of_no_config(self._models, self.workspace):
                name = path.relative_to(self.workspace.root).as_posix()
                self.workspace.store.tell(
                    f"of no config any more, and left alone: {name}; delete it if nobody needs it"
                )

    def report_of(self, step: Step) -> str:
        """What a step has to say to a reader, once: if it ran now, or is there for nothing else."""
        manifest = read_manifest(self.workspace.current(step))
        entry = manifest.files.get(REPORT) if manifest else None
        if entry is None or not (step.id in self.results or step.stage in ON_DEMAND):
            return ""
        try:
            return self.workspace.store.object_path(entry.sha256).read_text("utf-8").rstrip()
        except (OSError, ValueError):  # lost since, or damaged: the next build sees to it
            return ""

    def _wanted(self, step: Step) -> bool:
        wanted = step.config.targets if shares_binaries(step.config) else step.targets
        return not step.targets or any(target.soc in self._targets for target in wanted)

    def _steps_of(self, config: ModelConfig) -> Sequence[Step]:
        """What a build of a model takes."""
        return self._built[config.name]

    def _released(self) -> list[ModelConfig]:
        """The models that `package` and `publish` without a name are about."""
        return [each for each in self._planned.values() if each.release and (self._named or not each.on_request)]

    def _is_current(self, step: Step, *_: object) -> bool:
        if self._keeper is None:
            return self._gated.is_current(step)
        return self._keeper.saw(step.config.name, step.id, partial(self._gated.is_current, step))

    @contextmanager
    def _shown(self, step: Step) -> Iterator[Callable[[], None]]:
        """Gives what is to be called when the step's worker starts; at the end it runs no more."""

        def start() -> None:
            self.guard.before_work()
            self.announce(step)

        try:
            yield start
        finally:
            self.announce_end(step)

    def _is_published(self, config: ModelConfig, *_: object) -> bool:
        if self._keeper is None:
            return self._publishing.is_published(config)
        return self._keeper.saw(config.name, f"build:{config.name}", partial(self._publishing.is_published, config))

    def keep_unchanged(self, ran: Ran) -> None:
        """Remember the models of which all is done, for the next build."""
        if self._keeper and self.refusal is None:
            self._unchanged.keep_on_request(self.configs, self.workspace)
        for name, account in ran.accounts.items() if self._keeper else ():
            if self._keeper and name in self._planned and f"build:{name}" in ran.checked:
                steps, config = self._steps_of(self._planned[name]), self._planned[name]
                checks = {step.id: partial(self._gated.is_current, step) for step in steps}
                checks[f"build:{name}"] = partial(self._publishing.is_published, config)
                self._keeper.keep(name, checks, account)

    def _publish(self, config: ModelConfig) -> None:
        self._publishing.publish(config)
        self.results[f"build:{config.name}"] = ("built", 0.0)

    def write_pages(self, ran: Ran, run: RunRecord, tell: Callable[[str], None]) -> None:
        """Write the reports of the models that a command was about, where something changed."""
        write_pages(
            built_models(ran, run, self.workspace), run, self._models, self.workspace, lambda error: tell(str(error))
        )

    def publish_rest(self, models: Iterable[str], checked: Set[str]) -> dict[str, list[str]]:
        """Publish what passed of models of which components failed; model -> the components that are not there.

        Raises PipelineError.
        """
        return self._publishing.publish_rest([self.configs[name] for name in models], checked)

    def _package(self, config: ModelConfig) -> None:
        if self._publishing.package(config, self._targets):
            self.results[f"package:{config.name}"] = ("built", 0.0)

    def _action(self, command: ProjectCommand) -> Callable[..., TaskFailed | None]:
        """What doit calls: it looks at the names of parameters to see what to give."""

        def run(*names: list[str], **options: Any) -> None:
            status = command.run(*names, **options)
            self.status = self.status or status

        if command.takes_names:
            return lambda given, **options: reported(partial(run, given or [], **options))
        return lambda **options: reported(partial(run, **options))

    def _clean(self, model: str) -> None:
        try:
            archives = remove_archives(self.configs[model], self.workspace)
            pages = remove_page(model, self.workspace)
            for path in (*pages, *artifacts.remove(model, self.workspace), *archives):
                print(f"removed {path.relative_to(self.workspace.root)}")
        except PipelineError as error:
            refuse(error)


def declare(root: Path) -> tuple[Project, dict[str, Any]]:
    """The project at `root` and doit's settings for it; a wrong config ends the process with its exit code."""
    if run_record.is_build(sys.argv[1:]):
        run_record.begin(root / ".build")
    line = command_line.parse(sys.argv[1:])
    try:
        check_options(line)
        project = Project(root, line)
        if project.refusal is not None:
            print(f"error: {project.refusal}", file=sys.stderr)
        with disk_errors(project.workspace.build):
            project.workspace.build.mkdir(exist_ok=True)
    except PipelineError as error:
        if run_record.is_build(sys.argv[1:]) and error.where != command_line.WHERE:
            run_record.refused(root / ".build", sys.argv[1:], error)
        refuse(error)
    Reporter.project = project
    database.install(doit.dependency.JsonDB)
    # doit lets a project bring its reporter, not its runner; the others are for -n 0 and -P process.
    doit.cmd_run.Runner = doit.cmd_run.MRunner = doit.cmd_run.MThreadRunner = Runner
    interrupt.install()
    end_with_reader(True)  # until a reporter says otherwise: `doit list | head`
    settings = {
        "default_tasks": ["build"],
        "dep_file": str(project.workspace.build / "doit.json"),
        "backend": "json",
        "reporter": Reporter,
        "par_type": "thread",
        "num_process": cores(),
        "continue": True,  # what failed holds back nothing that does not stand on it
        "verbosity": 2,
        "sort": "definition",
    }
    return project, settings
