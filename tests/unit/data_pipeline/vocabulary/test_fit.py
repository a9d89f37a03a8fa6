"""Text that a vocabulary does not fit is refused before work is done, or warned of, and its share is told."""

import random
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from data_pipeline.prepare import prepare, prepare_share
from data_pipeline.settings import VocabularySettings
from data_pipeline.shards.index import INDEX, Index
from data_pipeline.stages import tasks
from data_pipeline.vocabulary.fit import refuse_unknown, stripped, unknown_note, without_marks
from data_pipeline.vocabulary.train import learn_vocabulary
from tests.command_line import Maskmill, described, write_text
from tests.factories.preparations import settings_for, silent

pytestmark = pytest.mark.usefixtures("worker_here")


def dna(letters: int, seed: int = 0) -> str:
    return "".join(random.Random(seed).choices("acgt", k=letters))


TEXTS = {
    "long words": " ".join(dna(300, seed) for seed in range(40)),
    "words a little too long": " ".join(dna(101, seed) for seed in range(40)),
    "chinese": "".join(chr(0x4E00 + i) for i in range(400)),
    "greek": "θάλασσα και πλοίο " * 60,
}
"""By what they are: texts of which an English WordPiece vocabulary knows next to nothing."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "corpus").mkdir()
    write_text(folder / "corpus" / "a.txt", documents=60, seed=1)
    for kind in ("wordpiece", "bpe"):
        settings = settings_for(folder, folder, vocab=f"{folder}/{kind}")
        learn_vocabulary(settings, VocabularySettings(kind=kind, size=300), silent)
    return folder


def of(text: Path, tmp_path: Path, content: str, files: int = 2, **options: object):  # type: ignore[no-untyped-def]
    """Settings for a corpus of this text, in so many files, and an out folder beside it."""
    (tmp_path / "corpus").mkdir(exist_ok=True)
    for name in range(files):
        (tmp_path / "corpus" / f"{name}.txt").write_text(content, encoding="utf-8")
    own = {"vocab": f"{text}/wordpiece", "held_out": 0.0} | options
    return settings_for(tmp_path, tmp_path / "out", **own)


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_mostly_unknown_is_refused_before_it_is_read(
    text: Path, tmp_path: Path, name: str
) -> None:
    settings = of(text, tmp_path, TEXTS[name], files=tasks.SAMPLED_PARTS)
    with pytest.raises(UserError) as error:
        prepare(settings, silent)
    line = str(error.value)
    assert line.startswith(f"{text}/wordpiece: 100.0% of the tokens of a sample of the text are unknown")
    long = "words longer than WordPiece cuts" in line
    assert long == ("long" in name)
    assert ("of another language, script or case" in line) != long
    assert "vocabulary.kind=bpe" in line
    assert not list((tmp_path / "out").rglob("read*"))
    with pytest.raises(UserError, match=r"100\.0% of the tokens"):
        prepare_share(settings, silent, "discover")
    index, _ = prepare(of(text, tmp_path, TEXTS[name], vocab=f"{text}/bpe"), silent, warn=pytest.fail)
    assert index.statistics["unknown_share"] == 0.0


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_unknown_behind_its_beginning_is_refused_before_a_shard(
    text: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "SAMPLED_CHARACTERS", 40)
    known = "the sea and the ship sailed over dark water. "
    settings = of(text, tmp_path, f"{known}\n\n{TEXTS[name]}", files=tasks.SAMPLED_PARTS)
    with pytest.raises(UserError, match=r"of the text's tokens are unknown"):
        prepare(settings, silent)
    assert (tmp_path / "out/.work/read-done").is_dir()
    assert not (tmp_path / "out/.work/plan.json").exists()
    assert not list((tmp_path / "out").rglob("*.tar"))
    prepare_share(settings, silent, "discover")
    prepare_share(settings, silent, "read")
    with pytest.raises(UserError, match=r"of the text's tokens are unknown"):
        prepare_share(settings, silent, "plan")
    assert not (tmp_path / "out" / INDEX).exists()


def test_few_parts_are_judged_as_a_whole(text: Path, tmp_path: Path) -> None:
    """Their beginnings are unknown, and most of the rest is known; or that is not."""
    for times, refused in ((30, False), (1, True)):
        known = "the sea and the ship sailed over dark water.\n\n" * times
        settings = of(text, tmp_path, f"{TEXTS['greek']}\n\n{known}")
        settings.out, said = f"{tmp_path}/{times}", list[str]()
        if refused:
            with pytest.raises(UserError, match="of the text's tokens"):
                prepare(settings, silent, warn=said.append)
        else:
            assert prepare(settings, silent, warn=said.append)[0].statistics["unknown_share"] > 0.3
        assert said[0].startswith("warning: ")


@pytest.mark.parametrize("name", TEXTS)
def test_exact_mode_refuses_it_too(text: Path, tmp_path: Path, name: str) -> None:
    content = TEXTS[name].replace(" ", "")  # words of more than the script's 200 characters, too
    settings = of(text, tmp_path, content, mode="exact", sentences="lines")
    with pytest.raises(UserError, match=r"100\.0% of the text's tokens are unknown"):
        prepare(settings, silent)
    assert not list((tmp_path / "out").rglob("*.tar"))


@pytest.mark.parametrize(("every", "warned"), [(40, False), (8, True)])
def test_a_small_share_is_told_and_from_a_twentieth_on_warned_of(
    text: Path, tmp_path: Path, maskmill: Maskmill, every: int, warned: bool
) -> None:
    words = (text / "corpus/a.txt").read_text().split()
    settings = of(
        text,
        tmp_path,
        " ".join(f"{word} ωκεανός" if n % every == 0 else word for n, word in enumerate(words)),
    )
    own = [f"data.{key}={getattr(settings, key)}" for key in ("out", "vocab", "held_out", "workers")]
    said = maskmill(
        "prepare", "demo", *own, f"data.sources=[{tmp_path}/corpus]", "data.duplicates=keep"
    ).stdout
    statistics = Index.load(settings.out).statistics
    share, reading = statistics["unknown_share"], statistics["reading"]
    assert share == pytest.approx(reading["unknown_tokens"] / reading["tokens"], abs=1e-6)
    assert (0.05 < share < 0.5) if warned else (0.005 < share < 0.05)
    lines = said.splitlines()
    told = f"{share:.1%} of the text's tokens are unknown to the vocabulary ([UNK])"
    assert [line.startswith("warning: ") for line in lines if told in line] == [warned]
    assert any(line.startswith("warning: ") and "of a sample of the text" in line for line in lines) == warned
    assert described(maskmill, settings.out)["statistics"]["unknown_share"] == share


@pytest.mark.parametrize(("unknown", "refused"), [(0, False), (50, False), (51, True), (100, True)])
def test_more_than_half_is_refused(unknown: int, refused: bool) -> None:
    reading = {"tokens": 100, "unknown_tokens": unknown}
    if refused:
        with pytest.raises(UserError, match=f"{unknown}.0% of the text's tokens"):
            refuse_unknown(reading, "vocab")
    else:
        refuse_unknown(reading, "vocab")


@pytest.mark.parametrize("reading", [{}, {"tokens": 0, "unknown_tokens": 0}, {"tokens": "7"}])
def test_nothing_is_said_of_no_tokens(reading: dict) -> None:
    refuse_unknown(reading, "vocab")
    assert unknown_note(reading) == ""


@pytest.mark.parametrize(
    ("text", "words", "changed"),
    [
        ("plain words", 2, 0),
        ("été où l'on va", 4, 2),
        ("अपने घर में", 3, 2),
        ("한국어 문장", 2, 0),
        ("переменной ёлка", 2, 2),
        ("", 0, 0),
    ],
)
def test_words_that_lose_marks_are_counted(text: str, words: int, changed: int) -> None:
    found = stripped([text, text])
    assert (found.words, found.changed) == (2 * words, 2 * changed)
    assert (found.example == "") == (changed == 0)
    assert without_marks("अपने") == "अपन"


def test_what_is_stripped_is_warned_of(text: Path, tmp_path: Path) -> None:
    words = ["the", "sea", "and", "the", "ship", "sailed", "over", "dark", "water"] * 30
    for content, warned in (("café " + " ".join(words), False), ("café père " * 9 + " ".join(words), True)):
        said: list[str] = []
        settings = of(text, tmp_path, content)
        settings.out = f"{tmp_path}/{warned}"
        prepare(settings, silent, warn=said.append)
        assert ["strips accents and other marks" in line for line in said] == [True] * warned
