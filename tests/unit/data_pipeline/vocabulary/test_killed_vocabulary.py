"""A vocabulary whose writing was killed is written by the same command, and none is taken for whole that is not."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.vocabulary import extend, files
from data_pipeline.vocabulary.train import VOCABULARY_LOG, learn_vocabulary
from tests.factories.vocabularies import TEXT, trained

SETTINGS = {
    "wordpiece": VocabularySettings(size=300),
    "bpe": VocabularySettings(size=400, kind="bpe"),
    "unigram": VocabularySettings(size=300, kind="unigram"),
}
NEW = VocabularySettings(new_words=5, min_frequency=1)


def stage(name: str, total: int) -> nullcontext:
    return nullcontext(lambda count: None)


def learn(kind: str, data: DataSettings) -> object:
    return learn_vocabulary(data, SETTINGS[kind], stage)


def lengthen(kind: str, data: DataSettings) -> object:
    return extend.extend_vocabulary(data, NEW, trained(kind), stage)


@pytest.mark.parametrize("write", [learn, lengthen])
@pytest.mark.parametrize("kind", SETTINGS)
def test_the_same_command_goes_on_wherever_it_was_killed(
    kind: str, write: Callable[[str, DataSettings], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    data = DataSettings(sources=[str(tmp_path / "text.txt")], vocab=str(tmp_path / "whole"))
    assert write(kind, data)[1]
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert len(expected) > 1
    for kept in range(len(expected)):
        data.vocab = str(tmp_path / f"killed-{kept}")
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_whole", killed := killed_after(kept))
            patch.setattr(extend, "write_whole", killed)
            with pytest.raises(KeyboardInterrupt):
                write(kind, data)
        assert write(kind, data)[1], "nothing was taken for whole"
        assert {path.name: path.read_bytes() for path in Path(data.vocab).iterdir()} == expected


def killed_after(kept: int) -> Callable[..., None]:
    """write_whole of a process that is killed before it writes another file than the first `kept`."""
    written, write_whole = [], files.write_whole

    def write(path: Path, data: Any) -> None:
        if len(written) == kept:
            raise KeyboardInterrupt
        written.append(path)
        write_whole(path, data)

    return write


def test_a_vocabulary_put_there_by_hand_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    data = DataSettings(sources=[str(tmp_path / "text.txt")], vocab=str(tmp_path / "vocabulary"))
    learn("wordpiece", data)
    own = tmp_path / "vocabulary" / "tokenizer.json"
    own.write_text(trained("bpe").json, "utf-8")
    with pytest.raises(UserError, match="was not trained into it"):
        learn("wordpiece", data)
    assert own.read_text("utf-8") == trained("bpe").json
    assert (tmp_path / "vocabulary" / VOCABULARY_LOG).is_file()
