"""Accents and other marks: stripped where that is asked for or usual, and alike in every tokenizer of a vocabulary."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from data_pipeline.errors import UserError
from data_pipeline.records import Document
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.tokenize.tokenize import WordCache
from data_pipeline.vocabulary.files import load_vocabulary, save_vocabulary
from data_pipeline.vocabulary.train import learn_vocabulary, strips_accents, train_vocabulary, with_accents_of
from launch.recipe import load_config
from tests.command_line import Maskmill
from tests.factories.preparations import silent

KINDS = ("wordpiece", "bpe", "unigram")
FRENCH = "L'Été dernier, à l'école, le garçon a mangé une pêche. Où est le maïs? Élève, où êtes-vous? "
HINDI = "अपने घर में हिन्दी किताब पढ़ी थी। "
OTHERS = "Ελλάδα και θάλασσα. Ёлка и чайка. İstanbul'da kar. Việt Nam. Straße. 한국어 문장. がぎぐ。 e\u0301 \u0301x ﬁ "
TEXT = f"{FRENCH}{HINDI}{OTHERS}"


def trained(kind: str, **options: object):  # type: ignore[no-untyped-def]
    settings = VocabularySettings(kind=kind, size=700, min_frequency=1, **options)  # type: ignore[arg-type]
    return train_vocabulary([Document("0", f"{TEXT}\n" * 5)], settings)


def text_of(vocabulary, text: str) -> str:  # type: ignore[no-untyped-def]
    return vocabulary.tokenizer.normalizer.normalize_str(text).strip()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowercase", [True, False, None])
@pytest.mark.parametrize("strip", [True, False, None])
def test_each_combination_is_what_it_says_everywhere(
    kind: str, lowercase: bool | None, strip: bool | None, tmp_path: Path
) -> None:
    """In the vocabulary, its files in every form, the library, transformers' view of them, and the compiled cache."""
    vocabulary = trained(kind, lowercase=lowercase, strip_accents=strip)
    lower = kind != "bpe" if lowercase is None else lowercase
    strips = lower if strip is None else strip
    expected = "Été अपने" if not strips else "Ete अपन"
    assert text_of(vocabulary, "Été अपने") == (expected.lower() if lower else expected)
    assert vocabulary.strips_accents == strips
    save_vocabulary(vocabulary, tmp_path / "v")
    forms = [tmp_path / "v", tmp_path / "v/tokenizer.json"]
    forms += [tmp_path / "v/vocab.txt"] if kind == "wordpiece" else []
    for form in forms:
        assert load_vocabulary(form).json == vocabulary.json
    theirs = Tokenizer.from_file(str(tmp_path / "v/tokenizer.json"))
    lines = TEXT.split()
    ids = [theirs.encode(line, add_special_tokens=False).ids for line in (*lines, TEXT)]
    found, counts = WordCache(vocabulary).encode([*lines, TEXT])
    assert found.tolist() == [number for line in ids for number in line]
    assert counts.tolist() == list(map(len, ids))


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_keeps_its_bytes(kind: str) -> None:
    """In wordpiece null, as in BERT's own tokenizer.json, whether it is left out or said."""
    for lowercase in (True, False):
        unset = trained(kind, lowercase=lowercase)
        assert trained(kind, lowercase=lowercase, strip_accents=lowercase).json == unset.json
        if kind == "wordpiece":
            assert unset.definition()["normalizer"]["strip_accents"] is None
            assert "tokenizer_config.json" not in unset.files()


@pytest.mark.parametrize(
    ("languages", "strips"),
    [
        ([], True),
        (["en"], True),
        (["en-GB"], True),
        (["fr"], False),
        (["hi"], False),
        (["en", "de"], False),
        (["enm"], False),
    ],
)
def test_a_stated_language_other_than_english_keeps_its_marks(languages: list[str], strips: bool) -> None:
    data = DataSettings(sources=["a", "b"], languages=languages)
    assert strips_accents(with_accents_of(data, VocabularySettings())) == strips
    assert not strips_accents(with_accents_of(data, VocabularySettings(lowercase=False)))
    for stated in (True, False):
        assert strips_accents(with_accents_of(data, VocabularySettings(strip_accents=stated))) == stated


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_what_was_trained_before_is_known_by_its_accents(kind: str, tmp_path: Path) -> None:
    """A log from before the setting says nothing of it: English counts as the default, French as other settings."""
    (tmp_path / "a.txt").write_text(f"{FRENCH}\n\n" * 9)
    english = DataSettings(sources=[f"{tmp_path}/a.txt"], vocab=f"{tmp_path}/vocab")
    settings, said = VocabularySettings(kind=kind, size=200), list[str]()
    assert learn_vocabulary(english, settings, silent, said.append)[1]
    assert any("strips accents and other marks" in line for line in said)
    log = tmp_path / "vocab/vocabulary.log.json"
    older = json.loads(log.read_text())
    del older["made_from"]["vocabulary.strip_accents"]
    log.write_text(json.dumps(older))
    assert not learn_vocabulary(english, settings, silent)[1]
    settings.strip_accents = False
    with pytest.raises(UserError, match=r"vocabulary\.strip_accents=False \(there: None\)"):
        learn_vocabulary(english, settings, silent)
    shutil.rmtree(tmp_path / "vocab")
    said.clear()
    french = DataSettings(sources=english.sources, vocab=english.vocab, languages=["fr"])
    found, _ = learn_vocabulary(french, VocabularySettings(kind=kind, size=200), silent, said.append)
    assert not found.strips_accents
    assert not any("marks" in line for line in said)


RECIPE = "extends: bert_base\nvocabulary:\n  strip_accents: true\n"


def test_a_recipes_value_can_be_unset(tmp_path: Path) -> None:
    """On the command line, and in a recipe that extends it; any setting that may be unset."""
    (tmp_path / "parent.yaml").write_text(RECIPE)
    recipe = str(tmp_path / "parent.yaml")
    assert load_config(recipe, []).vocabulary.strip_accents is True
    assert load_config(recipe, ["vocabulary.strip_accents=false"]).vocabulary.strip_accents is False
    config = load_config(recipe, ["vocabulary.strip_accents=null", "vocabulary.lowercase=null"])
    assert (config.vocabulary.strip_accents, config.vocabulary.lowercase) == (None, None)
    for text in ("null", "~", "'null'", ""):
        (tmp_path / "child.yaml").write_text(f"extends: parent\nvocabulary:\n  strip_accents: {text}\n")
        assert load_config(f"{tmp_path}/child.yaml", []).vocabulary.strip_accents is None


@pytest.mark.parametrize("key", ["vocabulary.size", "data.held_out", "optim.lr", "data.dynamic_masking"])
def test_what_cannot_be_unset_is_refused(key: str) -> None:
    with pytest.raises(UserError, match=r"null"):
        load_config("bert_base", [f"{key}=null"])


def test_vocab_and_prepare_warn(tmp_path: Path, maskmill: Maskmill) -> None:
    (tmp_path / "a.txt").write_text(f"{FRENCH}\n\n" * 60)
    own = [
        f"data.sources=[{tmp_path}/a.txt]",
        "vocabulary.size=200",
        "data.duplicates=keep",
        "data.workers=1",
    ]
    own += ["data.held_out=0"]
    for name, options, warned in (
        ("plain", [], True),
        ("kept", ["vocabulary.strip_accents=false"], False),
        ("french", ["data.languages=[fr]"], False),
    ):
        places = [f"data.vocab={tmp_path}/{name}", f"data.out={tmp_path}/{name}-shards", *options]
        for verb in ("vocab", "prepare"):
            said = maskmill(verb, "demo", *own, *places).stdout
            assert ("strips accents and other marks from" in said) == warned, (name, verb)
