"""Every shipped study is whole: its arms are runs that can start, in both forms; names and settings are checked."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from data_pipeline.errors import UserError
from data_pipeline.shards.index import Index
from launch.studies import study_names
from launch.studies.budget import all_cells, budget_of, first_cells, plan_lines
from launch.studies.read import Place, find_study, overrides_of, read_design, read_settings, run_of, trains
from launch.studies.run import tokens_by_step
from pretrain.preflight.gpus import gpu_named
from pretrain.preflight.memory import meta_model
from pretrain.preflight.step_time import Cluster
from pretrain.studies.design import FORMS, Changes
from pretrain.studies.measured import Cell, Measured
from pretrain.tasks.registry import check_name
from pretrain.tasks.settings import settings_for

SHARED = """title: T
question: Q?
recipe: demo
arms: {a: {}, b: {settings: {optim.lr: 1.0e-3}}, c: {settings: {data.sequence_length: 32}}}
tune: {schedule.warmup: [0.1, 0.2]}
"""


@pytest.mark.parametrize("name", study_names())
def test_arms_are_runs_that_can_start(name: str, tmp_path: Path) -> None:
    hour, long = (read_design(name, Changes(form=form)) for form in FORMS)
    place = Place(tmp_path, None, None, threads=2)
    assert (len(hour.seeds) >= 3, len(long.seeds) >= 5, bool(long.reading)) == (True,) * 3
    cells = [
        (hour, first_cells(hour)[0]),
        *((long, cell) for cell in {c.arm: c for c in first_cells(long)}.values()),
    ]
    for design, cell in cells:
        if trains(design, cell, place):
            config = run_of(design, cell, tmp_path, 2).config
            assert config.run.seed == cell.seed
            assert config.train.eval_every <= config.train.steps // 2
    for scoring in long.evaluate:
        for arm in long.arms.values():
            settings_for(check_name(scoring.task), scoring.settings | arm.evaluation)
    assert all_cells(long)[0] == first_cells(long)[0]
    assert not list(tmp_path.iterdir())  # to plan is to write nothing


@pytest.mark.parametrize("name", study_names())
def test_the_long_form_has_all_arms(name: str) -> None:
    hour, long = (read_design(name, Changes(form=form)) for form in FORMS)
    assert list(long.arms) == list(yaml.safe_load(find_study(name).read_text())["arms"])
    assert len(long.seeds) > len(hour.seeds)


def test_two_half_models_are_as_large_as_one_that_reads_both_ways(tmp_path: Path) -> None:
    design = read_design("elmo-gpt", Changes(form="long"))

    def parameters(arm: str) -> int:
        model = meta_model(run_of(design, Cell(arm, 1), tmp_path, 1).config, 4000)
        return sum(parameter.numel() for parameter in model.parameters())

    halves = [parameters(arm) for arm in design.arms["side_by_side"].sources]
    assert halves[0] == halves[1]
    assert sum(halves) == pytest.approx(parameters(design.reference), rel=0.03)


def test_the_long_form_of_segments_fine_tunes_on_a_tenth_of_each_treebank() -> None:
    """As the paper does; the hour form on as many sentences, of which a tenth of EWT are."""
    sizes = {}
    for form in FORMS:
        tasks = {one.known_as: one.settings for one in read_design("segments", Changes(form=form)).evaluate}
        sizes[form] = [tasks[task]["train_examples"] for task in ("ud", "mrpc")]
    assert sizes == {"hour": [1254, 1000], "long": [0.1, 1000]}


def test_arms_with_the_same_data_share_a_preparation(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(SHARED)
    design = read_design(str(tmp_path / "own.yaml"), Changes(settings=read_settings(["train.steps=7"])))
    a, b, c = (run_of(design, Cell(arm, 2, (("schedule.warmup", 0.2),)), tmp_path, 4) for arm in "abc")
    assert a.config.data.out == b.config.data.out != c.config.data.out
    assert a.config.data.vocab == b.config.data.vocab == c.config.data.vocab
    assert (a.config.schedule.warmup, a.config.run.seed, a.config.train.steps) == (0.2, 2, 7)
    assert (b.config.optim.lr, b.config.run.threads) == (1e-3, 2)  # the demo has two ranks
    assert a.config.run.dir != b.config.run.dir
    assert len(first_cells(design)) == 6
    assert len(all_cells(design)) == 6 + 3 * (len(design.seeds) - 1)


RAMP = """title: T
question: Q?
recipe: demo
settings: {run.ranks: 1, schedule.span: run}
arms:
  a: {settings: {data.sequence_length: 32}}
  b:
    settings:
      phases:
        - {name: short, data: {sequence_length: 32}, train: {steps: 60, global_batch: 64}}
        - {name: long, data: {sequence_length: 64}, train: {steps: 20}}
"""


def test_an_arm_may_have_phases(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(RAMP)
    design = read_design(str(tmp_path / "own.yaml"), Changes(seeds=1))
    place = Place(tmp_path, None, None, threads=1)
    a, b = (run_of(design, Cell(arm, 1), tmp_path, 1) for arm in "ab")
    short, long = b.phases
    assert [phase.data.out for phase in a.phases] == [short.data.out], "the same data as its first phase"
    assert short.data.out != long.data.out
    assert str(tmp_path / "data/shards-") in long.data.out
    assert (b.config.train.eval_every, b.config.train.checkpoint_every) == (10, 20)  # of 80 steps
    budget = budget_of(design, place, {})
    assert budget.steps == a.config.train.steps + 80
    assert budget.tokens == a.config.train.steps * 32 * 32 + 60 * 64 * 32 + 20 * 32 * 64
    lines = plan_lines(design, place, Cluster(1, 1, gpu_named("h100")), 0)
    assert f"{60 * 64 * 32 + 20 * 32 * 64:,} tokens each" in lines[1]
    changed = read_design(
        str(tmp_path / "own.yaml"), Changes(arms=("b",), settings=read_settings(["data.short_seq_prob=0.5"]))
    )
    assert run_of(changed, Cell("b", 1), tmp_path, 1).phases[1].data.out != long.data.out
    (tmp_path / "own.yaml").write_text(RAMP.replace("question", "equal_time: true\nquestion").replace(
        "run.ranks: 1", "run.ranks: 1, train.steps: 9"))  # fmt: skip
    timed = read_design(str(tmp_path / "own.yaml"), Changes())
    with pytest.raises(UserError, match="arm b: has phases"):
        run_of(timed, Cell("b", 1), tmp_path, 1)


@pytest.mark.parametrize(
    ("settings", "arm"),
    [("train.minutes: 3", "{}"), ("run.ranks: 1", "{settings: {train.minutes: 3}}"),
     ("run.ranks: 1", "{settings: {phases: [{name: a, train: {minutes: 3}}]}}")],
)  # fmt: skip
def test_minutes_are_refused(settings: str, arm: str, tmp_path: Path) -> None:
    """They leave open how many steps a run has, from which its evaluations and its tokens follow."""
    (tmp_path / "own.yaml").write_text(
        f"title: T\nquestion: Q?\nrecipe: demo\nsettings: {{{settings}}}\narms: {{a: {arm}}}\n"
    )
    design = read_design(str(tmp_path / "own.yaml"), Changes(seeds=1))
    with pytest.raises(UserError, match=r"study own, arm a: has train\.minutes"):
        budget_of(design, Place(tmp_path, None, None, threads=1), {})


def test_tokens_of_a_run_with_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text(RAMP)
    design = read_design(str(tmp_path / "own.yaml"), Changes(seeds=1))
    phases = run_of(design, Cell("b", 1), tmp_path, 1).phases
    lengths = {phases[0].data.out: 30, phases[1].data.out: 50}
    train = {folder: SimpleNamespace(tokens=7 * length, examples=7) for folder, length in lengths.items()}
    monkeypatch.setattr(Index, "load", lambda folder: SimpleNamespace(train=train[folder]))
    tokens = tokens_by_step(phases)
    assert [tokens(step) for step in (0, 30, 60, 80)] == [
        0, 30 * 64 * 30, 60 * 64 * 30, 60 * 64 * 30 + 20 * 32 * 50
    ]  # fmt: skip


def test_the_budget_counts_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text(SHARED)
    design = read_design(
        str(tmp_path / "own.yaml"), Changes(seeds=1, settings=read_settings(["train.steps=7"]))
    )
    place = Place(tmp_path, None, None, threads=2)
    before = budget_of(design, place, {})
    assert (before.runs, before.steps, before.tokens) == (6, 42, (4 * 64 + 2 * 32) * 32 * 7)
    monkeypatch.setattr("launch.studies.budget.peak_flops", lambda *_: 1e11)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    one, four = (budget_of(design, Place(tmp_path, None, None, threads=n), {}) for n in (8, 2))
    assert (one.at_once, four.at_once, one.seconds) == (1, 4, 4 * four.seconds)
    assert "one after the other" in str(one)
    assert "4 at a time" in str(four)
    done = {
        cell: Measured(cell.arm, 1, [list(p) for p in cell.tuned], {}, seconds=60.0)
        for cell in first_cells(design)[:1]
    }
    after = budget_of(design, place, done)
    assert after.runs == 5
    assert after.seconds * after.at_once > 60  # as long as the run before, and the other arms'
    lines = plan_lines(design, place, Cluster(1, 2, gpu_named("h100")), 2.5)
    assert "a: 2 runs" in lines[0]
    assert "hours of 2 x H100" in lines[-1]
    assert "at 2.5 an hour" in lines[-1]


def test_settings_of_the_command_line() -> None:
    assert read_settings(["optim.lr=[1e-3, 0.1]", "train.steps=5"]) == {
        "optim.lr": [0.001, 0.1],
        "train.steps": "5",
    }
    assert overrides_of({"a.b": True, "c": [1, "x"], "d": "off"}) == ["a.b=true", 'c=[1, "x"]', "d=off"]
    assert read_settings(["evaluate.ud.carve=0.5", "evaluate.ud.by_epoch=true", "train.steps=5"]) == {
        "evaluate.ud.carve": 0.5,
        "evaluate.ud.by_epoch": True,
        "train.steps": "5",
    }
    for word, said in {
        "evaluate.carve=0.5": r"expected evaluate\.TASK\.SETTING=VALUE",
        "evaluate.ud.carv=0.5": "unknown key carv .expected one of carve",
        "evaluate.ud.carve=half": "carve: ",
        "evaluate.ud.carve": "cannot read 'carve'",
    }.items():
        with pytest.raises(UserError, match=said):
            read_settings([word])
    with pytest.raises(UserError, match="did you mean plateau"):
        find_study("platau")
    with pytest.raises(UserError, match="no such study"):
        find_study("x" * 5000)
    assert find_study("large-batch").name == "large_batch.yaml"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("evaluate.rte.carve=0.5", "rte is not scored.*one of mrpc, ud"),
        ("evaluate.ud.features=last", "features: is not for ud"),
        ("evaluate.ud.part=0.5", "part: is not for ud.*blimp"),
        ("evaluate.ud.carve=1.5", r"carve: must be in \[0, 1\)"),
        ("evaluate.ud.train_examples=2.5", "train_examples: must be a whole number, or a share below 1"),
    ],
)
def test_a_setting_that_a_task_does_not_know_is_refused(word: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_design("segments", Changes(settings=read_settings([word])))
    known = read_design("segments", Changes(settings=read_settings(["evaluate.ud.carve=0.5"])))
    assert {one.task: one.settings.get("carve") for one in known.evaluate} == {"mrpc": None, "ud": 0.5}


@pytest.mark.parametrize("text", ["title: [", "- a", "title: !!python/object/apply:os.mkdir [x]"])
def test_what_is_no_study_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(UserError, match=r"own\.yaml"):
        read_design(str(tmp_path / "own.yaml"), Changes())
