"""What a model card says of the model that training started from, and of the language of its text."""

# ruff: noqa: RUF001

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from pretrain.config.settings import RunConfig
from pretrain.export.card import SENTENCES, language_of, sentence_for
from pretrain.export.lineage import CONTINUED, DISTILLED, parent_of

MATTER = "---\nlicense: {license}\n{more}---\n\n# A model\n"


def published(folder: Path, license: str = "apache-2.0", more: str = "", **config: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    (folder / "README.md").write_text(MATTER.format(license=license, more=more))
    return folder


def run_folder(folder: Path, init_from: object = "") -> Path:
    folder.mkdir(parents=True)
    config = replace(RunConfig(), init_from=str(init_from))
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
    return folder


def parent(source: object) -> Any:
    return parent_of(replace(RunConfig(), init_from=str(source)))


def test_a_run_from_raw_text_has_none() -> None:
    assert parent("") is None


@pytest.mark.parametrize(
    ("place", "config", "name"),
    [
        ("models/bert-base-uncased", {}, "bert-base-uncased"),
        ("models--google--bert_uncased_L-2/snapshots/0123abcd", {}, "google/bert_uncased_L-2"),
        ("anything", {"_name_or_path": "sentence-transformers/MiniLM-L6"}, "sentence-transformers/MiniLM-L6"),
        ("anything", {"_name_or_path": "/home/somebody/private"}, "anything"),
        ("anything", {"_name_or_path": 7}, "anything"),
    ],
)  # fmt: skip
def test_a_published_folder_has_a_name_and_a_license(
    tmp_path: Path, place: str, config: dict, name: str
) -> None:
    found = parent(published(tmp_path / place, **config))
    assert (found.name, found.license, found.relation, found.is_published) == (
        name,
        "apache-2.0",
        CONTINUED,
        True,
    )
    assert f"it continues the pretraining of `{name}`" in found.sentence
    assert "raw text" not in found.sentence
    assert str(tmp_path) not in str(found.facts)
    assert found.warning == ""


@pytest.mark.parametrize(
    ("license", "more", "stated"),
    [
        ("mit", "", "mit"),
        ("other", "license_name: my-own-terms\n", "my-own-terms"),
        ("[a, b]", "", ""),
        ("${oc.env:HOME}", "", ""),
        ("'x\\n# injected'", "", ""),
        ("mit", "a: [1,\n", ""),
        ("mit", "b: " + "[" * 100 + "\n", ""),
    ],
)
def test_the_license_is_what_the_card_states_and_nothing_odd(
    tmp_path: Path, license: str, more: str, stated: str
) -> None:
    assert parent(published(tmp_path / "model", license, more)).license == stated


def test_what_sentence_transformers_and_others_keep_beside_it_is_said(tmp_path: Path) -> None:
    model = published(tmp_path / "minilm")
    for name in (
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "LICENSE",
        "own.py",
    ):
        (model / name).write_text("{}")
    (model / "1_Pooling").mkdir()
    (model / "model.safetensors").write_text("")
    found = parent(model)
    listed = ("1_Pooling", "LICENSE", "config_sentence_transformers.json", "modules.json", "own.py")
    assert found.left_out == (*listed, "sentence_bert_config.json")
    assert found.warning.startswith(
        "left out, files of minilm that are no part of the export: 1_Pooling, LICENSE"
    )
    assert "how it pooled its vectors" in found.warning
    assert "1_Pooling" in str(found.facts)


def test_the_lineage_goes_through_runs_to_what_was_published(tmp_path: Path) -> None:
    raw = run_folder(tmp_path / "raw")
    found = parent(raw)
    assert (found.name, found.is_published) == ("raw", False)
    assert "which was pretrained from raw text" in found.sentence
    model = published(tmp_path / "model")
    second = run_folder(tmp_path / "second", run_folder(tmp_path / "first", model))
    assert parent(second).name == "model"
    checkpoint = second / "checkpoints" / "step-00000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "checkpoint.json").write_text("{}")
    assert parent(checkpoint).name == "model"
    circle = run_folder(tmp_path / "circle", tmp_path / "circle")
    assert parent(circle).name == "circle"


def test_a_runs_own_export_is_known_by_the_name_of_its_card(tmp_path: Path) -> None:
    index = "model-index:\n- name: bert-2x128\n  results: []\n"
    assert parent(published(tmp_path / "secret-client/export", more=index)).name == "bert-2x128"


def test_a_parent_that_is_gone_keeps_its_name(tmp_path: Path) -> None:
    found = parent(tmp_path / "gone" / "bert")
    assert (found.name, found.license, found.left_out) == ("bert", "", ())
    assert "was not there" in str(found.facts)


def test_a_teacher_is_a_parent_too(tmp_path: Path) -> None:
    config = RunConfig()
    config.objective.name = "distilbert"
    config.objective.distilbert.teacher = str(published(tmp_path / "teacher", "mit"))
    found = parent_of(config)
    assert found is not None
    assert (found.name, found.license, found.relation) == ("teacher", "mit", DISTILLED)
    assert "with `teacher` as its teacher" in found.sentence


TEXTS = {
    "en": "The cat sat on the mat, and the dog was with it for as long as the sun was out of sight.",
    "de": "Die Katze saß auf der Matte, und der Hund war mit ihr, als die Sonne nicht zu sehen war und es dunkel wird.",
    "fr": "Le chat était sur le tapis et les chiens des voisins sont dans la rue avec une balle qui est pour eux.",
    "cs": "Kočka byla na rohožce a pes se díval, jak je to možné, ale nebylo to tak, jako by to bylo pro něj.",
    "ru": "Кошка сидела на коврике, и собака смотрела на неё.",
    "uk": "Кішка сиділа на килимку, і собака дивилася на неї.",
    "zh": "猫坐在垫子上，狗看着它。",
    "ja": "猫がマットの上に座っていて、犬が見ていた。",
    "ko": "고양이가 매트 위에 앉아 있었다.",
    "hi": "बिल्ली चटाई पर बैठी थी।",
    "el": "Η γάτα καθόταν στο χαλί.",
    "ar": "جلست القطة على السجادة.",
}  # fmt: skip


@pytest.mark.parametrize("language", TEXTS)
def test_the_example_is_in_the_language_that_the_text_shows(language: str) -> None:
    assert language_of([TEXTS[language]] * 5) == language
    bare = TEXTS[language].lower().replace("ß", "ss")  # as an uncased vocabulary decodes
    assert language_of([bare] * 5) == language
    assert language in SENTENCES


def test_what_shows_no_language_has_none() -> None:
    assert language_of([]) == ""
    assert language_of(["ACGT" * 100, "0.1 0.2 0.3", "lorem ipsum dolor"]) == ""
    assert sentence_for(()) == SENTENCES["en"]
