"""Recipes and overrides: every shipped one is read, every mistake is one line that names the key."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from data_pipeline.fields import declared
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.settings import DataSettings, settings_affecting_bytes
from launch.completion import manual
from launch.recipe import first_sentence, load_config, objective_of, recipe_list, setting_names
from launch.recipes import recipe_names
from pretrain.config.encoder import EncoderSettings
from pretrain.config.phases import data_of_phases, phases_of
from pretrain.config.settings import RunConfig
from pretrain.config.yaml_files import schema
from pretrain.objectives.registry import OBJECTIVES
from pretrain.preflight.forecast import rate_of
from tests.command_line import ROOT, command, environ


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_is_a_valid_run(name: str) -> None:
    config = load_config(name, [])
    assert config.run.dir
    assert all(phase.config.data.out for phase in phases_of(config))


@pytest.mark.slow
def test_recipes_of_the_same_shards_prepare_the_same_bytes() -> None:
    """What one recipe has prepared, another with the same folder takes as its own."""
    prepared: dict[str, set[str]] = {}
    for name in recipe_names():
        for phase in phases_of(load_config(name, [])):
            data = replace(phase.config.data, lexicon="")  # ernie's is the user's own
            prepared.setdefault(data.out, set()).add(repr((data.vocab, settings_affecting_bytes(data))))
    assert {folder for folder, of in prepared.items() if len(of) > 1} == set()


def test_the_lamb_recipe_is_to_the_letter() -> None:
    one, two = (phase.config for phase in phases_of(load_config("bert_large", [])))
    for config, length, batch, steps, rate, warmup, predictions in (
        (one, 128, 65_536, 7038, 6e-3, 0.2843, 20),
        (two, 512, 32_768, 1563, 4e-3, 0.128, 80),
    ):
        assert (config.data.sequence_length, config.data.max_predictions) == (length, predictions)
        assert (config.train.global_batch, config.train.steps) == (batch, steps)
        assert (config.optim.lr, config.schedule.warmup) == (rate, warmup)
        assert (config.schedule.name, config.schedule.power) == ("nvidia", 0.5)
        assert (config.optim.name, config.optim.betas, config.optim.eps) == ("lamb", [0.9, 0.999], 1e-6)
        assert (config.optim.weight_decay, config.train.clip) == (0.01, 1.0)
        assert (config.encoder.layers, config.encoder.hidden, config.encoder.heads) == (24, 1024, 16)
        assert config.encoder.activation == "gelu_tanh"


@pytest.mark.parametrize("name", ["electra_small", "electra_base", "electra_large"])
def test_electras_recipes_allow_as_many_predictions_as_googles(name: str) -> None:
    data = load_config(name, []).data
    assert data.max_predictions == int((data.masked_lm_prob + 0.005) * data.sequence_length)


@pytest.mark.parametrize(
    "name", [name for name in recipe_names() if name.startswith(("bert", "multilingual"))]
)
def test_recipes_state_the_published_number_of_predictions(name: str) -> None:
    """20 at 128 (google-research/bert), 80 at 512 (NVIDIA): neither takes anything from 15 %."""
    for phase in phases_of(load_config(name, [])):
        data = phase.config.data
        assert data.max_predictions == {128: 20, 512: 80}.get(data.sequence_length, 0)
        assert not MaskBudget.of(data).binds(data.sequence_length)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.steps=3", "a setting of the phases phase1 and phase2 (expected phases.phase1.train.steps=...)"),
        ("phases.third.train.steps=3", "no phase 'third' (expected phases.NAME.KEY=value with NAME one of phase1"),
        ("phases.phase1.train.stps=3", "unknown key train.stps (expected one of train.steps"),
        ("phases.phase1.encoder.layers=3", "encoder.layers cannot differ between phases"),
        ("phases.phase1.data.vocab=other", "data.vocab cannot differ between phases"),
        ("phases.phase1.optim.betas=[0.9, 0.9]", "optim.betas cannot differ between phases"),
        ("phases.phase1.train.steps=many", "phase phase1: train.steps"),
        ("phases.phase2.train.steps=0", "phase phase2: train.steps must be at least 1, got 0"),
        ("phases.phase2.data.sequence_length=1024", "phase phase2: data.sequence_length=1024 is above"),
        ("phases.phase1=3", "phases.phase1 is a phase"),
        ("phases=3", "phases is a list"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_phase_names_it(override: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config("bert_large", [override])
    assert said in str(caught.value)


def test_one_schedule_may_span_the_phases(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "extends: demo\nschedule: {name: wsd, span: run, warmup: 5, decay: 10}\n"
        "phases: [{name: a, train: {steps: 5}}, {name: b, train: {steps: 15}, optim: {lr: 1e-3}}]\n"
    )
    one, two = phases_of(load_config(str(path), []))
    assert (one.schedule_first, one.schedule_steps, two.schedule_first, two.schedule_steps) == (0, 20, 0, 20)
    assert [rate_of(one, 4), rate_of(two, 0), rate_of(two, 5)] == [0.8 * one.config.optim.lr, 1e-3, 1e-3]
    assert rate_of(two, 14) == pytest.approx(1e-3 * (1 - 0.9**0.5))
    for override, said in (
        (
            "schedule.decay=16",
            "schedule.warmup=5 and schedule.decay=16 together take more than train.steps=20",
        ),
        (
            "schedule.decay=21",
            "schedule.decay=21 is neither a share below 1 nor whole steps up to train.steps=20",
        ),
        ("phases.b.schedule.decay=2", "schedule.decay cannot differ between phases that share one schedule"),
        ("phases.b.schedule.span=phase", "schedule.span cannot differ between phases"),
        ("schedule.span=phase", "phase a: schedule.decay=10 is neither a share below 1 nor"),
    ):
        with pytest.raises(UserError) as caught:
            load_config(str(path), [override])
        assert said in str(caught.value)


def test_masks_differ_by_phase_in_shards_of_their_own_or_dynamically(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "extends: demo\nphases: [{name: a, data: {masked_lm_prob: 0.3}}, {name: b, data: {masked_lm_prob: 0.05}}]\n"
    )
    with pytest.raises(UserError) as caught:
        data_of_phases(load_config(str(path), []))
    assert "phase b has the data.out of another phase and other data.masked_lm_prob" in str(caught.value)
    assert "a data.out of its own, or data.dynamic_masking=true for all phases" in str(caught.value)
    with pytest.raises(UserError, match="phase b has the "):
        data_of_phases(load_config(str(path), ["phases.b.data.dynamic_masking=true"]))
    (one,) = data_of_phases(load_config(str(path), ["data.dynamic_masking=true"]))
    assert one.masked_lm_prob == 0.3, "the shards are the first phase's"
    with pytest.raises(UserError, match=r"other data.sequence_length, data.masked_lm_prob \(give it"):
        data_of_phases(
            load_config(str(path), ["data.dynamic_masking=true", "phases.b.data.sequence_length=32"])
        )
    assert len(data_of_phases(load_config(str(path), ["phases.b.data.out=other"]))) == 2


def test_phases_take_what_they_do_not_set_from_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "extends: demo\nphases: [{name: a, train: {steps: 5}}, {name: b, data: {out: ~/b}, optim: {lr: 1e-3}}]\n"
    )
    config = load_config(
        str(path), ["phases.a.train.steps=7", "train.micro_batch=3", "phases.b.train.steps=11"]
    )
    one, two = phases_of(config)
    assert (one.first, one.last, two.first, two.last) == (0, 7, 7, 18)
    assert (one.config.optim.lr, two.config.optim.lr) == (load_config("demo", []).optim.lr, 1e-3)
    assert one.config.train.micro_batch == two.config.train.micro_batch == 3
    assert two.config.data.out == str(Path.home() / "b")
    assert config.phases[0] == {"name": "a", "train": {"steps": 7}}, "typed, as it is kept in config.yaml"
    path.write_text("extends: demo\nphases: [{name: a, train: {steps: 5}}, {name: a}]\n")
    with pytest.raises(UserError, match="the name 'a' of phase 2"):
        load_config(str(path), [])
    child = tmp_path / "child.yaml"
    child.write_text("extends: bert_large\ntrain: {steps: 5}\n")
    with pytest.raises(UserError, match="setting of the phases phase1 and phase2"):
        load_config(str(child), [])


def test_minutes_and_steps_replace_each_other(tmp_path: Path) -> None:
    """Of two layers the later one holds; the phases of a recipe are longer or shorter than the rest of it says."""

    def lengths(recipe: Path | str, *overrides: str) -> list[tuple[int, float]]:
        trains = [phase.config.train for phase in phases_of(load_config(str(recipe), list(overrides)))]
        return [(train.steps, train.minutes) for train in trains]

    assert lengths("demo", "train.minutes=2.5") == [(0, 2.5)]
    assert lengths("demo", "train.minutes=0") == lengths("demo")
    timed = tmp_path / "timed.yaml"
    timed.write_text("extends: demo\ntrain: {minutes: 4}\n")
    assert lengths(timed) == [(0, 4.0)]
    assert lengths(timed, "train.steps=7") == [(7, 0.0)]
    phased = tmp_path / "phased.yaml"
    phased.write_text(
        "extends: demo\nphases: [{name: a, train: {minutes: 3}}, {name: b, train: {steps: 5}}, {name: c}]\n"
    )
    plain = lengths("demo")[0]
    assert lengths(phased) == [(0, 3.0), (5, 0.0), plain]
    changed = ["phases.a.train.steps=8", "phases.b.train.minutes=1", "phases.c.train.minutes=2"]
    assert lengths(phased, *changed) == [(8, 0.0), (0, 1.0), (0, 2.0)]
    a, b, c = phases_of(load_config(str(phased), ["phases.b.train.minutes=1"]))
    assert (a.first, a.last, b.first, b.last, c.first, c.last) == (0, None, None, None, None, None)
    replays = [
        phase.config.train.replay
        for phase in phases_of(load_config(str(phased), ["train.replay=runs/first"]))
    ]
    assert replays == ["runs/first", "", ""]
    with pytest.raises(UserError, match=r"train\.minutes is a setting of the phases a and b"):
        load_config(str(phased), ["train.minutes=3"])


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        ("train: {steps: 9, minutes: 4}", [], "train.steps=9 and train.minutes=4 both say how long to train"),
        (
            "",
            ["train.steps=9", "train.minutes=4"],
            "train.steps and train.minutes both say how long to train",
        ),
        (
            "phases: [{name: a, train: {steps: 9, minutes: 4}}]",
            [],
            "phase a: train.steps=9 and train.minutes=4",
        ),
        ("train: {minutes: 4}", ["schedule.warmup=10"], "schedule.warmup=10 counts steps, whose number"),
        ("", ["train.minutes=0", "train.steps=0"], "train.steps must be at least 1, got 0"),
        ("", ["train.replay=runs/first"], "train.replay=runs/first without train.minutes"),
        (
            "phases: [{name: a, train: {steps: 9}}]",
            ["train.replay=runs/first"],
            "train.replay=runs/first repeats the shares of train.minutes, which no phase has",
        ),
    ],
)
def test_lengths_that_contradict_each_other_are_one_line(
    tmp_path: Path, text: str, overrides: list[str], said: str
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"extends: demo\n{text}\n")
    with pytest.raises(UserError) as caught:
        load_config(str(path), overrides)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", ["train.steps=15", "train.minutes=2"])
def test_shares_of_a_schedule_may_take_all_of_it_however_they_are_rounded(length: str) -> None:
    """A tenth and nine tenths of 15 steps are rounded to 2 and 14: the fall begins behind the second one."""
    given = [length, "schedule.name=wsd", "schedule.decay=0.9", "schedule.decay_shape=linear"]
    (phase,) = phases_of(load_config("demo", [*given, "schedule.warmup=0.1"]))
    if phase.config.train.steps:
        rates = [rate_of(phase, step) / phase.config.optim.lr for step in range(15)]
        assert rates == pytest.approx([0, 1 / 2, *(1 - n / 14 for n in range(1, 14))])
    with pytest.raises(
        UserError, match=r"schedule\.warmup=0\.11 and schedule\.decay=0\.9 together take more than"
    ):
        load_config("demo", [*given, "schedule.warmup=0.11"])


def test_a_ramp_grows() -> None:
    with pytest.raises(UserError, match=r"train\.batch_ramp_from=64 is above train\.global_batch=32"):
        load_config("demo", ["train.batch_ramp=5", "train.batch_ramp_from=64"])


def test_a_phase_may_set_the_thetas_of_an_encoder_that_rotates() -> None:
    phases = [{"name": "a"}, {"name": "b", "encoder": {"rope_theta": 160_000.0}}]
    one, two = phases_of(RunConfig(encoder=EncoderSettings(positions="rope"), phases=phases))
    assert (one.config.encoder.rope_theta, two.config.encoder.rope_theta) == (10_000, 160_000)
    with pytest.raises(
        UserError, match=r"phase phase2: encoder\.rope_theta=5\.0 with encoder\.positions=learned"
    ):
        load_config("bert_large", ["phases.phase2.encoder.rope_theta=5"])


def test_three_merges_in_order(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(
        "train: {steps: 5, global_batch: 8}\ndata: {sources: '{here}/text'}\n"
    )
    (tmp_path / "child.yaml").write_text("extends: parent\ntrain: {steps: 6}\n")
    config = load_config(str(tmp_path / "child.yaml"), ["optim.lr=1e-3", "data.vocab=~/v"])
    assert (config.train.steps, config.train.global_batch, config.optim.lr) == (6, 8, 1e-3)
    assert config.data.sources == [f"{tmp_path}/text"]
    assert config.data.vocab == str(Path.home() / "v")
    assert load_config(str(tmp_path / "child.yaml"), ["data.sources=[a, b]"]).data.sources == ["a", "b"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.step=3", "unknown key train.step (expected one of train.steps"),
        ("steps=3", "train.steps"),
        ("train.steps=many", "train.steps"),
        ("train.steps=0", "settings: train.steps must be at least 1, got 0"),
        ("train.minutes=-1", "train.minutes: must be in [0, 10000000], got -1"),
        ("train.minutes=inf", "train.minutes: must be in [0, 10000000], got inf"),
        ("optim.lr=1e999", "optim.lr: must be in [0, 1000000000000000], got inf"),
        ("init_new_words=all", "init_new_words: must be one of mean, first, fresh, got all"),
        ("train.replay=runs/old", "train.replay=runs/old without train.minutes"),
        ("train=3", "train is a group of settings"),
        ("train.steps.x=3", "train.steps is one setting"),
        ("train.steps", "expected key=value"),
        ("data.executor=ray", "data.executor: must be one of local, dask, got ray"),
        ("data.short_seq_prob=1.1", "data.short_seq_prob: must be in [0, 1], got 1.1"),
        ("data.duplicates=all", "data.duplicates: must be one of keep, documents, paragraphs, both, got all"),
        ("data.random_prob=0.3", "sum to more than 1"),
        ("data.mode=quick", "data.mode: must be one of fast, exact, got quick"),
        (
            "data.sequence_length=4096",
            "is above encoder.max_positions=64 (encoder.max_positions=4096, or shorter",
        ),
        ("run.ranks=65", "run.ranks=65 is above train.global_batch=32"),
        ("data.streams=7", "is not a multiple of data.streams=7"),
        ("train.batch_ramp=5", "train.batch_ramp=5 with train.batch_ramp_from=0"),
        ("train.batch_ramp_from=8", "train.batch_ramp=0 with train.batch_ramp_from=8"),
        ("encoder.heads=3", "is not a multiple of encoder.heads=3"),
        ("schedule.warmup=2.5", "schedule.warmup"),
        ("optim.betas=[0.9]", "optim.betas"),
        ("init_moments=true", "init_from"),
        ("data.sources=[a", "cannot read"),
        ("data.languages=[en, fi]", "data.languages: has 2 entries for 1 sources"),
        ("data.weights=[1, 2]", "data.weights: has 2 entries for 1 sources"),
        (
            "data.weights=[0]",
            "data.weights: each must be in (0, 10000], got 0.0 (to leave a source out, remove it",
        ),
        ("data.weights=[-2]", "data.weights: each must be in (0, 10000], got -2.0"),
        ("data.weights=[.nan]", "data.weights: each must be in (0, 10000], got nan"),
        ("data.smoothing=-1", "data.smoothing: must be in [0, 10], got -1"),
        ("data.masked_lm_prob=0", "data.masked_lm_prob must be in (0, 1] with data.masking=token, got 0"),
        ("data.masked_lm_prob=1.01", "data.masked_lm_prob: must be in [0, 1], got 1.01"),
        (
            "data.masking=none",
            "objective.name=bert cannot learn from data.masking=none (data.masking=token or span",
        ),
        ("data.max_predictions=-1", "data.max_predictions: must be in [0, 65535], got -1"),
        ("data.max_predictions=65536", "data.max_predictions: must be in [0, 65535], got 65536"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(override: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config("demo", [override])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_wrong_settings_are_listed_in_one_message() -> None:
    wrong = ["data.mode=exact", "data.sequence_length=512", "encoder.heads=0", "optim.name=sgd"]
    with pytest.raises(UserError) as caught:
        load_config("demo", [*wrong, "data.masked_lm_prob=0"])
    first, *lines = str(caught.value).splitlines()
    assert first == f"settings: {len(lines)} are wrong:"
    assert [line.partition(" (")[0] for line in lines] == [
        "  optim.name: must be one of lamb, adamw, stable_adamw, muon, got sgd",
        "  encoder.heads: must be in [1, 100000], got 0",
        "  data.masked_lm_prob must be in",
        "  data.mode=exact sets nothing aside, and data.held_out=0.03",
        "  data.mode=exact drops nothing, and data.duplicates=paragraphs",
        "  data.mode=exact reads one sentence per line, and data.sentences=split",
        "  data.sequence_length=512 is above encoder.max_positions=64",
    ]
    assert all("data.mode=fast" in line for line in lines if "data.mode=exact" in line), "and what to do"


def test_the_same_mistake_in_each_phase_is_listed_once() -> None:
    with pytest.raises(UserError) as caught:
        load_config("bert_large", ["encoder.heads=0", "phases.phase2.train.steps=0"])
    assert str(caught.value).splitlines() == [
        "settings: 2 are wrong:",
        "  phase phase1, encoder.heads: must be in [1, 100000], got 0",
        "  phase phase2: train.steps must be at least 1, got 0 (0 saves the weights of init_from as they are)",
    ]


def test_all_unknown_keys_of_a_command_line_are_listed() -> None:
    with pytest.raises(UserError) as caught:
        load_config("demo", ["train.stps=3", "optim.lr=1e-3", "optim.nothing=3", "nothing"])
    assert [line.strip().partition(" (")[0] for line in str(caught.value).splitlines()][1:] == [
        "command line: unknown key train.stps",
        "command line: unknown key optim.nothing",
        "command line: cannot read 'nothing'",
    ]


@pytest.mark.parametrize(
    "override",
    [
        "data.separators=absent",
        "data.count_specials=false",
        "data.random_next=0.2",
        "data.segment_ids=false",
        "data.smoothing=0.7",
        "data.weights=[2]",
        "data.sequences=sentence_order",
        "data.documents=file",
        "data.duplicates=both",
        "data.tokens=tokens",
        "data.held_out=0.01",
    ],
)
def test_exact_mode_makes_only_what_the_script_makes(override: str) -> None:
    exact = ["data.mode=exact", "data.held_out=0", "data.sentences=lines", "data.duplicates=keep"]
    assert load_config("demo", exact).data.mode == "exact"
    with pytest.raises(UserError, match=r"data\.mode=exact"):
        load_config("demo", [*exact, override])


def test_exact_mode_does_not_keep_languages_apart() -> None:
    exact = ["data.mode=exact", "data.held_out=0", "data.sentences=lines", "data.smoothing=1"]
    assert load_config("multilingual", [*exact, "data.across_languages=true"])
    with pytest.raises(UserError, match=r"data\.across_languages=true"):
        load_config("multilingual", exact)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: [", "not YAML"),
        ("- a", "not a recipe"),
        ("train: {steps: !!python/object/apply:os.system [true]}", "not YAML"),
        ("extends: itself", "circle"),
        ("extends: 3", "extends"),
        ("extends: nobody", "no such recipe"),
        ("trian: {steps: 3}", "unknown key trian"),
        ("train: {steps: null}", "has no value"),
        ("run: {dir: '${oc.env:NO_SUCH_VARIABLE}'}", "interpolation"),
    ],
)
def test_a_bad_recipe_is_one_line_that_names_the_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "itself.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_config(str(path), [])
    assert said in str(caught.value)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean demo"):
        load_config("demoo", [])


@pytest.mark.parametrize("text", ["1e3", "1000.0", "1_000", "1000", "1E+3"])
def test_a_whole_number_is_one_however_it_is_written(text: str, tmp_path: Path) -> None:
    config = load_config("demo", [f"train.steps={text}", "schedule.warmup=0"])
    assert (config.train.steps, type(config.train.steps)) == (1000, int)
    path = tmp_path / "recipe.yaml"
    path.write_text(f"extends: bert_large\nrun: {{seed: {text}}}\n")
    config = load_config(str(path), [f"phases.phase1.train.steps={text}", "run.ranks=1e0"])
    assert (config.run.seed, config.run.ranks, config.phases[0]["train"]["steps"]) == (1000, 1, 1000)
    assert type(config.phases[0]["train"]["steps"]) is int


@pytest.mark.parametrize("text", ["1.5", "15e-1", "inf", "1e999", "nan", "1e3x", "0x1p3"])
def test_what_is_no_whole_number_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"extends: demo\ntrain: {{steps: {text}}}\n")
    for recipe, overrides in (("demo", [f"train.steps={text}"]), (str(path), [])):
        with pytest.raises(UserError, match=r"train\.steps"):
            load_config(recipe, overrides)


def test_every_digit_of_a_seed_counts() -> None:
    assert load_config("demo", [f"run.seed={2**62 + 1}"]).run.seed == 2**62 + 1


def test_every_setting_is_documented_and_checked() -> None:
    listed = {key: meaning for key, _, meaning in manual()}
    assert list(listed) == setting_names()
    assert [key for key, meaning in listed.items() if not meaning] == []
    for key, one in declared(RunConfig):
        if one.type in (int, float):
            assert "values" in one.metadata, f"{key} takes any number"


def test_names_that_scripts_rely_on() -> None:
    names = set(setting_names())
    for group, keys in {
        "data": "sources out vocab seed sequence_length dupe_factor short_seq_prob masked_lm_prob max_predictions "
        "whole_word mode held_out streams across_languages min_donors workers executor verify",
        "run": "dir ranks seed stop_after",
        "train": "shards steps global_batch micro_batch precision clip eval_every checkpoint_every deterministic",
        "zero": "stage",
        "optim": "name lr betas eps weight_decay",
        "schedule": "name warmup power",
        "encoder": "layers hidden heads intermediate activation dropout attention_dropout max_positions",
        "objective": "name",
        "monitor": "tracker project id",
    }.items():
        assert {f"{group}.{key}" for key in keys.split()} <= names
    assert "init_from" in names


def test_places_and_workers_do_not_decide_bytes() -> None:
    deciding = set(settings_affecting_bytes(DataSettings()))
    assert deciding.isdisjoint({"sources", "out", "vocab", "workers", "executor", "streams", "verify"})
    assert {"seed", "sequence_length", "dupe_factor", "held_out", "block_examples"} <= deciding


def test_what_one_recipe_changes_no_other_sees() -> None:
    schema().optim.lr = 5.0
    schema().data.sources.append("text.txt")
    assert (schema().optim.lr, schema().data.sources) == (RunConfig().optim.lr, RunConfig().data.sources)


def test_off_and_on_mean_in_a_recipe_what_they_mean_on_the_command_line(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    for word in ("off", "on", "auto"):
        recipe.write_text(f"extends: demo\ntrain:\n  compile: {word}\n")
        assert load_config(str(recipe), []).train.compile == word


# `maskmill train --list` shows every objective and recipe with a line each, and does not wait for torch.


def test_lists_every_objective_and_every_recipe_once() -> None:
    listed = list(recipe_list())
    assert [entry.objective for entry in listed] == list(OBJECTIVES)
    assert sorted(name for entry in listed for name, _ in entry.recipes) == recipe_names()
    for entry in listed:
        assert entry.what.startswith("Train ")
        assert entry.recipes, f"{entry.objective} has no recipe"
        assert all(len(line) > 10 for _, line in entry.recipes)


@pytest.mark.parametrize("recipe", ["demo", "mlm_tiny", "causal_tiny", "electra_large"])
def test_finds_the_objective_through_extended_recipes(recipe: str) -> None:
    assert objective_of(recipe) == load_config(recipe, []).objective.name


def test_first_sentence_ends_at_a_stop_but_not_after_et_al() -> None:
    assert first_sentence("One (Liu et al. 2019)\n of two. Three.") == "One (Liu et al. 2019) of two"
    assert first_sentence("One: two. Three.", stops=".:") == "One"
    assert first_sentence("No stop at 1.5") == "No stop at 1.5"


def test_command_prints_the_list_without_a_recipe() -> None:
    done = subprocess.run(
        command("train", "--list"), capture_output=True, text=True, cwd=ROOT, env=environ(), check=True
    )
    lines = done.stdout.splitlines()
    assert any(line.startswith("causal: Train a left-to-right") for line in lines)
    assert any(line.split()[:1] == ["bert_base"] for line in lines)


def test_listing_does_not_import_torch() -> None:
    code = "import sys; from launch.recipe import recipe_list; list(recipe_list())"
    code += "; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ(), check=True)
