"""A vocabulary or a teacher that does not fit is refused by the commands, in one line and before any work."""

from dataclasses import astuple
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import save_vocabulary
from data_pipeline.vocabulary.unigram import LAYOUTS
from launch.recipe import load_config
from pretrain.preflight.check_run import check_vocabulary
from tests.command_line import Maskmill
from tests.factories.shards import random_examples, write_folder
from tests.factories.teachers import taught_by, teacher_folder
from tests.factories.vocabularies import trained

VOCABULARIES = {
    "unigram of ALBERT": lambda: trained("unigram"),
    "unigram of XLM-R": lambda: trained("unigram", specials="roberta"),
    "unigram of XLNet": lambda: trained("unigram", specials="xlnet"),
    "wordpiece": lambda: trained("wordpiece"),
}
REFUSED = [
    ("roberta_tiny", "wordpiece", "the vocabulary is wordpiece (expected bpe, which objective.name=roberta needs"),
    ("xlnet_tiny", "wordpiece", "the vocabulary is wordpiece (expected unigram, which objective.name=xlnet needs"),
    (
        "xlnet_tiny",
        "unigram of ALBERT",
        "the vocabulary has the special tokens <pad> <unk> [CLS] [SEP] [MASK] "
        "(expected <pad> <unk> <cls> <sep> <mask>, which objective.name=xlnet needs",
    ),
    (
        "xlmr_tiny",
        "unigram of XLNet",
        "the vocabulary has the special tokens <pad> <unk> <cls> <sep> <mask> "
        "(expected <pad> <unk> <s> </s> <mask>, which objective.name=xlmr needs",
    ),
]  # fmt: skip


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens instead of ranks being started."""
    happened: list[str] = []
    monkeypatch.setattr("launch.ranks.start_ranks", lambda *_: happened.append("ranks") or 0)
    return happened


def shards(folder: Path, vocabulary: Vocabulary) -> list[str]:
    """Settings of a run on shards with this vocabulary, whatever its recipe says of its own."""
    examples = random_examples(24, longest=32, size=vocabulary.size)
    write_folder(
        folder / "shards", [examples], [], longest=32, vocabulary=vocabulary, sequences="segment_pair"
    )
    settings = ["data.sequences=segment_pair", "train.global_batch=4", "train.micro_batch=4", "run.ranks=1"]
    places = {"train.shards": "shards", "data.vocab": "none", "run.dir": "run"}
    return [*settings, *(f"{key}={folder / name}" for key, name in places.items())]


def assert_refused(said: str, words: str, tmp_path: Path) -> None:
    assert words in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("recipe", "kind", "words"), REFUSED)
def test_train_refuses_shards_of_another_vocabulary(
    recipe: str, kind: str, words: str, started: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    settings = shards(tmp_path, VOCABULARIES[kind]())
    said = maskmill("train", recipe, *settings, code=2).stderr
    assert_refused(said, f"{tmp_path}/shards: {words}", tmp_path)
    assert started == []


def test_train_takes_shards_of_the_right_one(started: list[str], maskmill: Maskmill, tmp_path: Path) -> None:
    maskmill("train", "xlnet_tiny", *shards(tmp_path, VOCABULARIES["unigram of XLNet"]()))
    assert started == ["ranks"]


@pytest.mark.parametrize(("recipe", "kind", "words"), REFUSED)
def test_prepare_refuses_another_vocabulary(
    recipe: str, kind: str, words: str, maskmill: Maskmill, tmp_path: Path
) -> None:
    """Before it looks for the text, which is not there."""
    save_vocabulary(VOCABULARIES[kind](), tmp_path / "vocabulary")
    places = {"data.sources": "none.txt", "data.vocab": "vocabulary", "data.out": "shards", "run.dir": "run"}
    settings = [f"{key}={tmp_path / name}" for key, name in places.items()]
    said = maskmill("prepare", recipe, *settings, code=2).stderr
    assert_refused(said, f"{tmp_path}/vocabulary: {words}", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["vocabulary"]


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ("distilbert_tiny", "objective.distilbert.teacher"),
        ("electra_two_stage_tiny", "objective.electra_two_stage.generator"),
    ],
)
def test_train_refuses_a_teacher_that_does_not_fit(
    recipe: str, key: str, started: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    vocabulary = trained("wordpiece")
    settings, student = shards(tmp_path, vocabulary), load_config(recipe, []).encoder
    fitting, other = (teacher_folder(astuple(taught_by(student)), vocabulary.size + n) for n in (0, 1))
    said = maskmill("train", recipe, *settings, f"{key}={other}", code=2).stderr
    size = vocabulary.size
    words = f"is no teacher for this student: the vocabulary has {size} entries, the teacher's {size + 1}"
    assert_refused(said, f"{other}: {words}", tmp_path)
    assert started == []
    maskmill("train", recipe, *settings, f"{key}={fitting}")
    assert started == ["ranks"]


@pytest.mark.parametrize("recipe", ["xlnet_tiny", "xlmr_tiny"])
def test_special_tokens_of_one_layout_fit_one_objective(recipe: str) -> None:
    config = load_config(recipe, [])
    for specials in LAYOUTS:
        vocabulary = trained("unigram", specials=specials)
        if specials == config.vocabulary.specials:
            check_vocabulary(config, vocabulary, "here")
        else:
            with pytest.raises(UserError, match=r"^here: the vocabulary has the special tokens"):
                check_vocabulary(config, vocabulary, "here")


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_albert_takes_any_vocabulary(kind: str) -> None:
    check_vocabulary(load_config("albert_tiny", []), VOCABULARIES[kind](), "here")
