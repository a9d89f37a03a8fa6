"""Models whose vocabulary gets new words: old rows stay, new ones start from old pieces, transformers loads them."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.shards.index import VocabularyStamp
from data_pipeline.tokenize.tokenize import WordCache
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import load_vocabulary, save_vocabulary
from data_pipeline.vocabulary.new_words import WordCounts, choose, old_pieces
from pretrain.huggingface.registry import check_vocabulary
from pretrain.model.initialize import vocabulary_rows
from pretrain.training.initial_weights import ROWS, InitialWeights, from_folder, with_new_rows
from pretrain.training.initial_weights_check import check_hugging_face
from tests.factories.published import DISTILBERT, SAME, written
from tests.reference.test_initial_weights import exported, settings, started

TEXT = "nephrology glomerulonephritis dialysis nephropathy"
PIECES = ([2], [1, 2, 2], [3, 0])


def refuse() -> Tensor:
    raise AssertionError("no fresh rows are needed")


@pytest.mark.parametrize("how", ROWS)
@pytest.mark.parametrize("shape", [(4, 3), (4,)])
def test_new_rows(how: str, shape: tuple[int, ...]) -> None:
    table = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = with_new_rows(
        table, PIECES, how, (lambda: torch.full((3, *shape[1:]), 7.0)) if how == "fresh" else refuse
    )
    assert found.shape == (7, *shape[1:])
    assert found[:4].equal(table)
    expected = {
        "mean": [table[2], (table[1] + 2 * table[2]) / 3, (table[3] + table[0]) / 2],
        "first": [table[2], table[1], table[3]],
        "fresh": [torch.full(shape[1:], 7.0)] * 3,
    }[how]
    assert torch.allclose(found[4:], torch.stack(expected))


@pytest.mark.parametrize("how", ROWS)
def test_entries_without_old_pieces_are_fresh(how: str) -> None:
    table, drawn = torch.randn(4, 3), torch.randn(3, 3)
    found = with_new_rows(table, ([], [2], []), how, lambda: drawn)
    assert found[[4, 6]].equal(drawn[[0, 2]])
    assert found[5].equal(drawn[1] if how == "fresh" else table[2])


def extension(name: str, folder: Path, out: Path, text: str = TEXT) -> tuple[Vocabulary, Vocabulary]:
    """The vocabulary of a model, and its extension by the words of a text, which is saved in `out`."""
    old = load_vocabulary(next(folder.rglob("tokenizer.json")).parent)
    words = choose(WordCounts.of([Document("0", text)]), old, VocabularySettings(min_frequency=1))
    assert len(words) == len(text.split())
    extended = old.extended([word.piece for word in words])
    save_vocabulary(extended, out)
    return old, extended


def started_with(config, old: Vocabulary, extended: Vocabulary) -> InitialWeights:
    check_hugging_face(config, extended)
    found = from_folder(config, extended)
    assert found.pieces == old_pieces(old, extended)
    return found


SOURCES = {**SAME, "distilbert": DISTILBERT}


@pytest.mark.parametrize("name", SOURCES)
def test_old_rows_stay_and_new_ones_are_the_means(name: str, tmp_path: Path) -> None:
    folder = written(SOURCES[name], tmp_path / "in")
    old, extended = extension(name, folder, tmp_path / "vocabulary")
    before = started(settings(folder, *SOURCES[name].overrides))
    assert before.notes == []
    config = settings(folder, f"data.vocab={tmp_path}/vocabulary", *SOURCES[name].overrides)
    after = started_with(config, old, extended)
    assert after.notes == [
        f"{old.size:,} entries of the vocabulary extended to {extended.size:,} (init_new_words=mean)"
    ]
    grown = vocabulary_rows(after.objective.build_model(VocabularyStamp.of(extended)))
    assert grown.keys() >= {"encoder.embeddings.word.weight"}
    for tensor_name, tensor in after.weights.items():
        then = before.weights[tensor_name]
        assert tensor[: len(then)].equal(then)
        assert (len(tensor) > len(then)) == (tensor_name in grown)
        if tensor_name in grown:
            for row, pieces in zip(tensor[old.size :], old_pieces(old, extended), strict=True):
                assert torch.allclose(row, then[pieces].mean(0))

    out = exported(config, after.weights, tmp_path / "out")
    for model in sorted({path.parent for path in out.rglob("config.json")}):
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        loaded = transformers.AutoModel.from_pretrained(model)
        source = transformers.AutoModel.from_pretrained(folder / model.relative_to(out))
        words, words_before = (m.get_input_embeddings().weight for m in (loaded, source))
        assert loaded.config.vocab_size == len(tokenizer) == len(words) == extended.size
        assert words[: old.size].equal(words_before)
        ids = tokenizer("some nephrology, dialysis", add_special_tokens=False)["input_ids"]
        assert ids == WordCache(extended).encode(["some nephrology, dialysis"])[0].tolist()
        assert sum(i >= old.size for i in ids) == 2


@pytest.mark.parametrize(("name", "how"), [("bert", "mean"), ("bert", "first"), ("albert", "mean")])
def test_words_of_unknown_characters_start_apart(name: str, how: str, tmp_path: Path) -> None:
    """From their old piece, [UNK], all would start as one vector."""
    folder = written(SAME[name], tmp_path / "in")
    old, extended = extension(
        name, folder, tmp_path / "vocabulary", "스프레드시트 저장하기 dialysis nephropathy"
    )
    unknown = [n for n, pieces in enumerate(old_pieces(old, extended)) if not pieces]
    assert len(unknown) == 2
    config = settings(folder, f"data.vocab={tmp_path}/vocabulary", f"init_new_words={how}")
    found, again = (started_with(config, old, extended) for _ in range(2))
    assert found.notes == [
        f"{old.size:,} entries of the vocabulary extended to {extended.size:,} (init_new_words={how}); 2 of the new "
        "ones are fresh, since the old vocabulary takes them as unknown"
    ]
    word = "encoder.embeddings.word.weight"
    one, other = (found.weights[word][old.size + n] for n in unknown)
    assert (one - other).abs().min() > 0
    for tensor_name, tensor in found.weights.items():
        assert again.weights[tensor_name].equal(tensor)
    assert one.equal(found.fresh[word][old.size + unknown[0]])
    fresh = settings(folder, f"data.vocab={tmp_path}/vocabulary", "init_new_words=fresh")
    assert started_with(fresh, old, extended).notes[0].endswith("(init_new_words=fresh)")


def test_fresh_rows_are_those_of_a_new_model(tmp_path: Path) -> None:
    folder = written(SAME["roberta"], tmp_path / "in")
    old, extended = extension("roberta", folder, tmp_path / "vocabulary")
    config = settings(folder, f"data.vocab={tmp_path}/vocabulary", "init_new_words=fresh")
    found, name = started_with(config, old, extended), "encoder.embeddings.word.weight"
    assert found.weights[name][old.size :].equal(found.fresh[name][old.size :])
    assert found.weights[name].shape == found.fresh[name].shape


def test_only_entries_behind_all_old_ones_are_an_extension(tmp_path: Path) -> None:
    folder = written(SAME["bert"], tmp_path / "in")
    old, extended = extension("bert", folder, tmp_path / "vocabulary")
    with pytest.raises(UserError, match="has another vocabulary") as caught:
        check_vocabulary(folder, extended)  # as of a teacher, whose predictions are of its own entries
    assert "--extend" not in str(caught.value)
    assert check_vocabulary(folder, extended, may_extend=True).tokens == old.tokens
    swapped = [*extended.tokens[:-6], extended.tokens[-1], *extended.tokens[-6:-1]]
    config = settings(folder, f"data.vocab={tmp_path}/vocabulary")
    for tokens in (swapped, old.tokens[:-1]):
        other = type(old)(tokens, old.specials, old.normalization)  # type: ignore[attr-defined]
        with pytest.raises(UserError, match=f"maskmill vocab --extend {folder}"):
            check_hugging_face(config, other)
