"""Only the models that a command line is about are planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline import tasks
from pipeline.command_line import parse
from pipeline.config import load as config_load
from pipeline.config.load import ModelConfig, load_healthy
from pipeline.config.yaml.problems import Problems
from pipeline.errors import ConfigError
from pipeline.plan import planner
from pipeline.plan.about import OTHERS, check_names, check_words, models_about, models_read, names_stages
from pipeline.plan.steps import Step
from pipeline.project_commands import choose
from tests.support import tiny_project

MODELS = {"demo", "demo2", "minilm"}


KNOWN = {"models": ["demo", "minilm"], "targets": ["sm8550", "sm8650"]}


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        (
            "build:demo models=minilm",
            "build:demo is of demo, which models=minilm leaves out",
            "leave out the filter: doit build:demo, or the name: doit build models=minilm",
        ),
        ("clean build:demo models=minilm", "build:demo is of demo, which models=minilm leaves out", "doit build:demo"),
        ("buckets:demo models=minilm", "buckets:demo is of demo", "leave out the filter: doit buckets:demo"),
        (
            "context:demo/net/64/sm8650 targets=sm8550",
            "context:demo/net/64/sm8650 is of sm8650, which targets=sm8550 leaves out",
            "or the name: doit context targets=sm8550",
        ),
    ],
)
def test_a_task_that_a_filter_leaves_out(line: str, what: str, remedy: str) -> None:
    parsed = parse(line.split())
    with pytest.raises(ConfigError) as caught:
        choose(parsed.variables, KNOWN, parsed.names)
    assert what in caught.value.what
    assert caught.value.remedy.endswith(remedy) or remedy in caught.value.remedy.split(", or")[0]


@pytest.mark.parametrize(
    "line",
    [
        "build:demo models=demo",
        "build:demo models=demo,minilm targets=sm8650",
        "build:demo targets=sm8650",
        "build:* models=demo",
        "context:demo/net/64/sm8650 targets=sm8650",
        "build:nope models=demo",
        "build models=demo",
    ],
)
def test_a_filter_that_leaves_a_task(line: str) -> None:
    parsed = parse(line.split())
    assert choose(parsed.variables, KNOWN, parsed.names)["models"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("list", set()),
        ("list --all", MODELS),
        ("list build:demo", MODELS),
        ("-n 2 list", MODELS),
        ("", MODELS),
        ("build", MODELS),
        ("build models=demo", MODELS),
        ("gc", MODELS),
        ("clean build:demo", MODELS),
        ("build:demo", {"demo"}),
        ("-n 2 build:demo", {"demo"}),
        ("run build:demo package:minilm", {"demo", "minilm"}),
        ("build:demo gc", MODELS),
        ("build:demo*", {"demo", "demo2"}),
        ("build:dem?", {"demo", "demo2"}),
        ("build:[dm]*", MODELS),
        ("context:demo/encoder/*/sm8650", {"demo"}),
        ("context:*sm8650", MODELS),
        ("context:demo", {"demo"}),
        ("build:nothing", set()),
    ],
)
def test_the_models_that_a_command_line_is_about(line: str, expected: set[str]) -> None:
    assert models_about(parse(line.split()), MODELS) == expected


def test_only_configs_of_named_models_are_read_and_planned_whatever_rules_for_hosts_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=(8,), targets=("sm8650",))
    text = (project.root / tiny_project.CONFIG).read_text("utf-8")
    for name in ("one", "two", "three"):
        project.write(f"configs/{name}.yaml", text)
    project.write("configs/project.yaml", "stages: {context: {hosts: [compiler]}}\n")
    read, planned = list[str](), list[str]()
    read_one, plan_one = config_load._read, planner.plan

    def noted_read(path: Path, problems: Problems) -> ModelConfig | None:
        read.append(path.stem)
        return read_one(path, problems)

    def noted_plan(config: ModelConfig) -> tuple[Step, ...]:
        planned.append(config.name)
        return plan_one(config)

    monkeypatch.setattr(config_load, "_read", noted_read)
    monkeypatch.setattr(planner, "plan", noted_plan)
    monkeypatch.setattr(tasks, "plan", noted_plan)
    for line, expected in (("build:two", {"two"}), ("build", {"tiny", "one", "two", "three"})):
        read.clear()
        planned.clear()
        tasks.Project(project.root, parse(line.split()))
        assert {*planned} == expected
        assert {*read} == expected


def test_a_first_config_is_written_beside_one_that_is_wrong(tmp_path: Path) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=(8,), targets=("sm8650",))
    project.write("configs/wrong.yaml", "source: 1\n")
    run = project.doit("init", "mine", "model/model.onnx", check=False)
    assert "wrong.yaml" not in run.text
    assert (run.status, (project.root / "configs/mine.yaml").is_file()) == (0, True), run.text
    assert project.doit("build", check=False).status == 10, "who builds all still hears of it"


def test_a_stage_alone_leaves_out_what_is_built_on_request(tmp_path: Path) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=(8,), targets=("sm8650",))
    text = (project.root / tiny_project.CONFIG).read_text("utf-8")
    project.write("configs/asked.yaml", f"on_request: true\n{text}")
    run = project.doit("fetch")
    assert {*run.built} == {"fetch:tiny"}
    assert "Left out, as only on request: doit fetch:asked" in run.text
    run = project.doit("fetch:asked")
    assert {*run.restored, *run.built} == {"fetch:asked"}
    assert "Left out" not in run.text
    run = project.doit("ingest", "models=asked")
    assert {*run.restored, *run.built} == {"ingest:asked/net"}
    assert "Left out" not in run.text


def test_a_name_without_a_step_is_refused_with_the_nearest_of_all_steps() -> None:
    every = ("context:demo/a/32/x", "context:minilm/a/32/x")
    check_names(parse(["build:demo", "context:demo/*", "gc", "unheard:of"]), every[:1], MODELS, {"smol"}, lambda: every)
    with pytest.raises(ConfigError, match=r"'context:minilm/a/23/x'; did you mean 'context:minilm/a/32/x'"):
        check_names(parse(["context:minilm/a/23/x"]), (), MODELS, {"smol"}, lambda: every)
    with pytest.raises(ConfigError, match="'build:dmo'; did you mean 'build:demo'"):
        check_names(parse(["build:dmo"]), (), MODELS, {"smol"}, lambda: every)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("blame:demo", "of demo there are 'blame:demo/a/32', 'blame:demo/a/64', 'blame:demo/b/32' and 1 more, all by"),
        ("blame:dmo", "of demo there are 'blame:demo/a/32', "),
        ("blame:demo/b", "of demo/b there are 'blame:demo/b/32', 'blame:demo/b/64', all by 'blame:demo/b/*'"),
        ("blame:demo/nothing", "of demo there are 'blame:demo/a/32', "),
        ("blame:minilm", "of minilm there is 'blame:minilm/x/32', all by 'blame:minilm/*'"),
        ("blame:dmo/*", "did you mean 'blame:demo/*'?"),
        ("blame:demo/a/64/sm8650", "did you mean 'blame:demo/a/64'?"),
        ("blame:minlm/x/32", "did you mean 'blame:minilm/x/32'?"),
    ],
)
def test_a_name_that_is_short_or_wrong_in_a_part_is_told_what_there_is(name: str, told: str) -> None:
    every = [f"blame:demo/{part}/{size}" for part in "ab" for size in (32, 64)]
    every += ["blame:minilm/x/32", "probe:demo/a/32/sm8650"]
    with pytest.raises(ConfigError, match=re.escape(told)):
        check_names(parse([name]), (), MODELS, {"smol"}, lambda: every)


def test_what_is_suggested_is_of_the_kind_that_was_asked_for() -> None:
    for name in ("build:smoll", "context:smol"):  # only a chat has that name, or nearly
        with pytest.raises(ConfigError) as caught:
            check_names(parse([name]), (), MODELS, {"smol"}, tuple)
        assert "did you mean" not in str(caught.value)
        assert "models are demo, demo2, minilm; 'doit list --all' prints every name" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("chat", "chat needs a model, and none is given\n"),
        ("chat:demo", "demo is no language model\n"),
        ("chat:smo", "no model is named 'smo'; did you mean 'smol'?"),
        ("chat:dem", "no model is named 'dem'\n"),
    ],
)
def test_only_a_language_model_is_suggested_to_talk_to(name: str, told: str) -> None:
    models = {*MODELS, "smol"}
    check_names(parse(["chat:smol", "chat:*"]), (), models, {"smol"}, tuple)
    with pytest.raises(ConfigError) as caught:
        check_names(parse([name]), (), models, {"smol"}, tuple)
    assert told in f"{caught.value}\n"
    assert "next: doit chat:smol; docs/language-models.md" in str(caught.value)
    with pytest.raises(ConfigError, match="did you mean 'report:smol'"):
        check_names(parse(["report:smo"]), (), models, {"smol"}, tuple)


def test_what_is_of_one_model_is_refused_without_one_where_it_would_run() -> None:
    with pytest.raises(ConfigError, match=r"buckets needs a model, and none is given\n.*\n  next: doit buckets:demo"):
        check_names(parse(["buckets"]), (), MODELS, (), tuple)
    for line in (["help", "buckets"], ["list", "chat"], ["help", "chat"], ["buckets:demo"]):
        check_names(parse(line), (), MODELS, (), tuple)
    with pytest.raises(ConfigError, match="demo is no language model"):
        check_names(parse(["list", "chat:demo"]), (), MODELS, (), tuple)


def test_a_model_whose_file_ends_in_yml_is_told_of_when_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "foo.yml").touch()
    (tmp_path / "demo.yaml").write_text("source: {path: x}\ncomponents: {a: {file: a.onnx}}\ntargets: [sm8650]\n")
    read = models_read(parse(["build:foo"]), tmp_path)
    assert read is None, "no file of that name would be read: all are looked at"
    _, refusal = load_healthy(tmp_path, read)
    assert refusal is not None
    assert "foo.yml:1:1: would not be read; expected the name foo.yaml" in refusal.what
    assert models_read(parse(["build:dem*"]), tmp_path) is None
    (tmp_path / "other.yaml").touch()
    assert models_read(parse(["build:demo"]), tmp_path) == {"demo"}, "what is wrong elsewhere holds nothing up"


@pytest.mark.parametrize(
    ("line", "expected"),
    [("", False), ("build", False), ("package:demo", False), ("context", True), ("build:demo 'verify:demo/*'", True)],
)
def test_steps_that_are_asked_for_by_name(line: str, expected: bool) -> None:
    assert names_stages(parse(line.replace("'", "").split())) is expected


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("demo", "'demo'; did you mean 'build:demo'?"),
        ("build demo", "'demo'; did you mean 'build:demo'?"),
        ("report minilm", "'minilm'; did you mean 'report:minilm'?"),
        ("-n 2 biuld", "'biuld'; did you mean 'build'?"),
        ("clean nosuch", "'nosuch'"),
        ("biuld:demo", "'biuld'; did you mean 'build:demo'?"),
        ("demo:64", "'demo'; did you mean 'build:demo'?"),
        ("report:demo extra", "'extra'"),
        ("chat:demo minilm --say x", "'minilm'; did you mean 'chat:minilm'?"),
    ],
)
def test_a_word_that_is_no_command_or_stage_is_refused(line: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"no command or stage is named {told}")) as caught:
        check_words(parse(line.split()), MODELS)
    assert "doit build:MODEL; models are demo, demo2, minilm; 'doit list'" in caught.value.remedy


def test_a_colon_behind_a_command_that_is_of_no_model_and_more_models_than_are_shown() -> None:
    with pytest.raises(ConfigError, match="'gc' takes nothing behind a colon"):
        check_words(parse(["gc:demo"]), MODELS)
    with pytest.raises(ConfigError, match="models are a, b, c, d, e and 2 more;"):
        check_words(parse(["nosuch"]), {*"abcdefg"})
    with pytest.raises(ConfigError, match="there is no model yet;"):
        check_words(parse(["nosuch:a"]), ())


@pytest.mark.parametrize(
    "line",
    ["", "build", "build:nosuch", "help nosuch", "init demo2 models/a.onnx", "verify-release demo",
     "buckets:demo --lengths demo", "chat:demo --say hello --tokens 3", "report:demo targets=sm8650 --no-browser",
     "build context targets=sm8650", "*demo*", "*:demo", "b*:demo", ".build/steps/x", ".build/steps/context:demo",
     "C:\\steps"],
)  # fmt: skip
def test_what_names_commands_or_is_theirs_is_not(line: str) -> None:
    check_words(parse(line.split()), MODELS)


def test_every_task_of_the_project_is_a_known_word(tmp_path: Path) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=(8,), targets=("sm8650",))
    listed = {line.split()[0] for line in project.doit("list").text.splitlines()}
    assert "build" in listed
    assert {*OTHERS} <= listed, "the others are no commands any more"
    for name in listed:
        check_words(parse([name]), set())
