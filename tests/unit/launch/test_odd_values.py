"""Interpolations, control characters and huge numbers are refused in one line at every door of settings."""

import json
import time
from pathlib import Path

import pytest
import typer

import launch.verbs  # noqa: F401  registers them
from data_pipeline.errors import SeveralErrors, UserError
from data_pipeline.fields import value_of
from data_pipeline.stages.executors import Share
from launch.app import app
from launch.recipe import load_config, read_changes, setting_names, with_folder_settings
from launch.studies.read import read_design, read_settings
from pretrain.config.yaml_files import schema
from pretrain.run.files import read_or
from pretrain.run.folder import read_config
from pretrain.run.folder import read_settings as settings_of_run
from pretrain.studies.design import Changes

SECRET = "a-secret-of-the-environment"
INTERPOLATED = {
    "environment": "run: {dir: '${oc.env:KEY}'}",
    "in a list": "data: {sources: ['https://host/?${oc.env:KEY}']}",
    "in a key": "run: {'${oc.env:KEY}': 1}",
    "escaped in YAML": 'run: {dir: "\\x24{oc.env:KEY}"}',
    "another setting": "run: {dir: '${data.out}'}",
    "relative": "run: {dir: '${.live}'}",
    "cut short": "data: {sources: ['${oc.decode:[1']}",
    "nested": "data: {vocab: '" + "${" * 4000 + "}" * 4000 + "'}",
    "in a phase": "phases: [{name: a, data: {out: '${oc.env:KEY}'}}]",
    "a backslash before it": "run: {dir: '\\${oc.env:KEY}'}",
    "in extends": "extends: ${oc.env:KEY}",
    "in an unused anchor": "run: {dir: &a 'x${oc.env:KEY}'}",
    "exponential": "data:\n"
    + "".join(
        f"  {a}: '{('${data.' + b + '}') * 20}'\n"
        for a, b in zip(
            ("vocab", "out", "work", "tokens", "lexicon"),
            ("out", "work", "tokens", "lexicon", "mode"),
            strict=True,
        )
    ),
}


def one_line(error: BaseException) -> str:
    several = error.errors if isinstance(error, SeveralErrors) else ()
    assert len(str(error).splitlines()) == 1 + len(several)
    assert SECRET not in str(error)
    return str(error)


@pytest.mark.parametrize("text", INTERPOLATED.values(), ids=INTERPOLATED)
def test_a_recipe_with_an_interpolation_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("KEY", SECRET)
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    began = time.monotonic()
    with pytest.raises(UserError) as caught:
        load_config(str(path), [])
    assert time.monotonic() - began < 2
    line = one_line(caught.value)
    assert line.startswith(f"{path}, line ")
    assert line.endswith("interpolation, ${...}, is not supported (expected the value itself, without ${)")


@pytest.mark.parametrize(
    "override",
    [
        "run.dir=${oc.env:KEY}",
        "run.dir=\\${oc.env:KEY}",
        "data.sources=[a, '${oc.env:KEY}']",
        'data.sources=["\\x24{oc.env:KEY}"]',
        "run.${oc.env:KEY}=1",
        "phases.${oc.env:KEY}.train.steps=1",
        "train.steps=${train.log_every}",
    ],
)
def test_a_command_line_with_an_interpolation_is_refused(
    monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    monkeypatch.setenv("KEY", SECRET)
    for reader in (
        lambda: load_config("demo", [override]),
        lambda: read_settings([override]),
        lambda: read_changes([override]),
    ):
        with pytest.raises(UserError, match="interpolation") as caught:
            reader()
        one_line(caught.value)


def test_a_run_folder_with_an_interpolation_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", SECRET)
    (tmp_path / "config.yaml").write_text("monitor: {name: '${oc.env:KEY}'}")
    with pytest.raises(UserError, match="interpolation") as caught:
        read_config(tmp_path)
    one_line(caught.value)
    complaints: list[str] = []
    assert read_or(tmp_path / "config.yaml", lambda path: settings_of_run(path.parent), {}, complaints) == {}
    assert "interpolation" in complaints[0]


def test_a_study_with_an_interpolation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", SECRET)
    path = tmp_path / "study.yaml"
    path.write_text("title: a\nquestion: b\nrecipe: demo\narms: {a: {run.dir: '${oc.env:KEY}'}}\n")
    with pytest.raises(UserError, match="interpolation") as caught:
        read_design(str(path), Changes())
    one_line(caught.value)


def test_a_model_folder_with_an_interpolation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"architectures": ["BertForPreTraining"], "model_type": "bert", "hidden_act": "${oc.env:HOME}"}
        )
    )
    settings = schema()
    settings.init_from = str(tmp_path)
    with pytest.raises(UserError) as caught:
        with_folder_settings(settings, set())
    one_line(caught.value)


@pytest.mark.parametrize("path", ["runs/$x", "$HOME/a", "a$", "$$", "a{b}", "{here"])
def test_a_dollar_without_a_brace_is_kept_as_it_is(path: str) -> None:
    assert load_config("demo", [f"run.dir={path}"]).run.dir == path


def test_here_behind_a_dollar_makes_no_interpolation(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("run: {dir: '${here}'}")
    with pytest.raises(UserError, match="interpolation"):
        load_config(str(path), [])
    path.write_text("run: {dir: '${{here}}'}")
    with pytest.raises(UserError, match="interpolation"):
        load_config(str(path), [])


@pytest.mark.parametrize("text", ["a\\0b", "\\e[31m", "\\x7f", "\\x9b2J", "a\\rb"])
def test_control_characters_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f'data: {{out: "{text}"}}')
    with pytest.raises(UserError, match="control character") as caught:
        load_config(str(path), [])
    assert one_line(caught.value).isprintable()
    with pytest.raises(UserError, match="control character"):
        load_config("demo", [f'data.sources=["{text}"]'])
    with pytest.raises(UserError, match="control character"):
        load_config(
            "demo", [f"run.dir={text.encode().decode('unicode_escape') if 'e[' not in text else chr(27)}"]
        )


@pytest.mark.parametrize("value", ["'???'", '"???"'])
def test_omegaconfs_mark_of_a_lacking_value_is_no_value(tmp_path: Path, value: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"train: {{steps: {value}}}")
    with pytest.raises(UserError, match="no value"):
        load_config(str(path), [])


CONFIG = load_config("demo", [])
NUMBERS = [
    name
    for name in setting_names()
    if isinstance(value_of(CONFIG, name), int | float) and not isinstance(value_of(CONFIG, name), bool)
]
HUGE = (
    "9" * 400,
    "-" + "9" * 400,
    "1e400",
    "-1e400",
    "nan",
    "1e300",
    "9" * 5000,
    str(2**63 + 1),
    str(2**63 - 1),
)


@pytest.mark.parametrize("value", HUGE, ids=lambda value: value[:20])
def test_a_huge_number_is_one_line_for_every_setting(tmp_path: Path, value: str) -> None:
    path = tmp_path / "recipe.yaml"
    for name in NUMBERS:
        if value == str(2**63 - 1) and name.endswith("seed"):
            assert value_of(load_config("demo", [f"{name}={value}"]), name) == 2**63 - 1
            continue
        group, _, key = name.rpartition(".")
        nested = f"{key}: {value}"
        for part in reversed(group.split(".")):
            nested = f"{part}: {{{nested}}}"
        path.write_text(nested)
        for source, overrides in (("demo", [f"{name}={value}"]), (str(path), [])):
            with pytest.raises(UserError) as caught:
                load_config(source, overrides)
            assert len(one_line(caught.value)) < 1000


def numeric_options() -> list[tuple[str, str]]:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return [
        (name, option.opts[0])
        for name, verb in verbs.items()
        for option in verb.params
        if option.bare_type() in ("int", "float")
    ]


def test_every_verb_has_its_numbers_checked() -> None:
    assert {"inspect", "plan", "slurm", "study", "evaluate"} <= {verb for verb, _ in numeric_options()}


@pytest.mark.parametrize(
    "value", [str(10**23), "-" + "9" * 400, "9" * 5000, "1e400", "nan"], ids=lambda v: v[:9]
)
@pytest.mark.parametrize(("verb", "option"), numeric_options())
def test_a_huge_number_of_an_option_is_one_line(verb: str, option: str, value: str) -> None:
    with pytest.raises(Exception, match=r"(?i)expected at most|valid|input should|unable") as caught:
        app([verb, "demo", f"{option}={value}"], standalone_mode=False)
    usage = getattr(caught.value, "format_message", None)
    assert usage or isinstance(caught.value, UserError)
    assert len(usage().splitlines() if usage else [one_line(caught.value)]) == 1


@pytest.mark.parametrize("text", ["9" * 5000 + "/" + "9" * 5001, "1/" + "9" * 5000, "3/1" + "0" * 23])
def test_a_huge_share_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="--share"):
        Share.parsed(text)
