"""Settings by their old names, wherever a user or an older version has written them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from data_pipeline.errors import UserError
from data_pipeline.fields import value_of
from data_pipeline.settings import DataSettings, settings_affecting_bytes
from launch.recipe import load_config
from launch.studies.read import read_design
from pretrain.config.renamed import RENAMED, with_new_names, with_old_keys
from pretrain.config.settings import RunConfig
from pretrain.export.export import _differing
from pretrain.run.folder import parsed_config, refuse_another, sealed_config
from pretrain.studies.design import Changes

VALUES = {"data.mask_prob": 0.7, "optim.muon_rate": "original", "run.step_limit": 60.0}
"""Values other than the defaults."""
assert VALUES.keys() == RENAMED.keys()


def nested(values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        group, _, name = key.partition(".")
        found.setdefault(group, {})[name] = value
    return found


def lines(where: object) -> list[str]:
    return [f"maskmill: {where}: {old} is now {new}" for old, new in RENAMED.items()]


def test_an_old_name_is_the_new_setting_and_the_line_says_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.recipe._announced", set())
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(yaml.safe_dump({"extends": "demo"} | nested(VALUES)))
    overrides = [f"{key}={value}" for key, value in VALUES.items()]
    for name, pairs, where in (("demo", overrides, "command line"), (str(recipe), [], recipe)):
        config = load_config(name, pairs)
        assert [value_of(config, new) for new in RENAMED.values()] == list(VALUES.values())
        assert capsys.readouterr().err.splitlines() == lines(where)
    load_config(str(recipe), [])
    assert capsys.readouterr().err == "", "once"


def test_phases_and_studies_may_have_old_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = [{"name": "short", "data": {"mask_prob": 0.6, "out": "a"}, "train": {"steps": 1}}]
    recipe = tmp_path / "phases.yaml"
    recipe.write_text(yaml.safe_dump({"extends": "demo", "phases": phases}))
    assert load_config(str(recipe), []).phases[0]["data"]["mask_replace_prob"] == 0.6
    changed = load_config(str(recipe), ["phases.short.data.mask_prob=0.5"])
    assert changed.phases[0]["data"]["mask_replace_prob"] == 0.5
    capsys.readouterr()
    study = tmp_path / "study.yaml"
    arms = {"one": {}, "two": {"settings": {"data.mask_prob": 0.7}}}
    text = {"title": "a", "question": "b?", "recipe": "demo", "arms": arms, "hour": {}, "long": {}}
    study.write_text(yaml.safe_dump(text))
    design = read_design(str(study), Changes())
    assert design.arms["two"].settings == {"data.mask_replace_prob": 0.7}
    assert capsys.readouterr().err == "maskmill: study.yaml: data.mask_prob is now data.mask_replace_prob\n"


def test_both_names_are_refused() -> None:
    with pytest.raises(UserError, match=r"run\.step_limit and run\.step_timeout are one setting"):
        with_new_names({"run": {"step_limit": 1, "step_timeout": 2}}, "recipe.yaml")


def test_older_run_folders_stay_readable_and_resume() -> None:
    config = RunConfig()
    text = sealed_config(config).decode()
    for old, new in RENAMED.items():
        assert f"  {new.partition('.')[2]}: " in text
        text = text.replace(f"  {new.partition('.')[2]}: ", f"  {old.partition('.')[2]}: ")
    text = text.rpartition("# sha256")[0]
    assert parsed_config(text, "config.yaml") == config
    now = {"optim.muon_adjust_lr_fn": "original", "run.seed": 1}
    refuse_another({"optim.muon_rate": "original", "run.seed": 1}, now, "run", "")
    with pytest.raises(UserError, match=r"optim\.muon_adjust_lr_fn=original \(there: match_rms_adamw\)"):
        refuse_another({"optim.muon_rate": "match_rms_adamw", "run.seed": 1}, now, "run", "")
    assert list(_differing(config, {"optim.muon_rate": "original"})) == ["optim.muon_adjust_lr_fn"]


def test_hashes_and_index_files_keep_the_old_names() -> None:
    recorded = settings_affecting_bytes(DataSettings(mask_replace_prob=0.7))
    assert recorded["mask_prob"] == 0.7
    assert "mask_replace_prob" not in recorded
    assert with_old_keys(dict.fromkeys(RENAMED.values(), 1)) == dict.fromkeys(RENAMED, 1)
    assert with_old_keys({"lr": 1, "muon_adjust_lr_fn": 2}, "optim") == {"lr": 1, "muon_rate": 2}
