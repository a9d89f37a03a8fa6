"""Vocabularies as transformers saves them: loaded here with its ids, and exported so that it gives ours."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import transformers

from data_pipeline.errors import UserError
from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.tokenize.tokenize import WordCache
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import load_vocabulary, save_vocabulary
from data_pipeline.vocabulary.train import train_vocabulary
from pretrain.export.tokenizer import write_tokenizer
from tests.factories.vocabularies import SAMPLE, charsmap, trained

SENTENCES = [
    "The captain's boat isn't there, 3.14 & ``co''.",
    "Crème brûlée été; Straße, İstanbul, ﬁne Ａ½ x\u0301 ¨ \u0301y",
    "東京 字字 のが and Москва नमस्ते 한국 ☃ שלום \u200b👨\u200d👩\u200d👧",
    "<mask> [CLS] <unk>",
    *SAMPLE.read_text("utf-8").split("\n")[:40],
]


def pieces_of(vocabulary: Vocabulary, specials: list[str]) -> list[tuple[str, float]]:
    """Our unigram pieces behind the special tokens of another program."""
    known = zip(vocabulary.tokens[5:], vocabulary.scores[5:], strict=True)  # type: ignore[attr-defined]
    return [(token, 0.0) for token in specials] + list(known)


def given(name: str, folder: Path) -> tuple[transformers.PreTrainedTokenizerFast, Path]:
    """A tokenizer of transformers' class `name`, and the folder into which it was saved."""
    bpe, unigram = trained("bpe"), trained("unigram", False)
    table = {"_spm_precompiled_charsmap": base64.b64decode(charsmap())}
    if name == "Roberta":
        tokenizer = transformers.RobertaTokenizer(bpe.ids, bpe.merges, add_prefix_space=True)  # type: ignore[attr-defined]
    elif name == "Albert":
        specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
        tokenizer = transformers.AlbertTokenizer(pieces_of(unigram, specials), **table)
    elif name == "XLNet":
        specials = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
        tokenizer = transformers.XLNetTokenizer(pieces_of(unigram, specials), unk_id=0, **table)
    elif name == "XLMRoberta":
        specials = ["<s>", "<pad>", "</s>", "<unk>"]
        pieces = [*pieces_of(unigram, specials), ("<mask>", 0.0)]
        tokenizer = transformers.XLMRobertaTokenizer(vocab=pieces, **table)
    else:
        pieces = pieces_of(unigram, ["<pad>", "</s>", "<unk>"])
        tokenizer = transformers.T5Tokenizer(pieces, extra_ids=3, **table)
    tokenizer.save_pretrained(folder)
    return tokenizer, folder


ROLES = {  # pad, unk, cls, sep, mask
    "Roberta": ("<pad>", "<unk>", "<s>", "</s>", "<mask>"),
    "Albert": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "XLNet": ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>"),
    "XLMRoberta": ("<pad>", "<unk>", "<s>", "</s>", "<mask>"),
    "T5": ("<pad>", "<unk>", "[CLS]", "</s>", "[MASK]"),
}


@pytest.mark.parametrize("name", ROLES)
def test_what_transformers_saves_loads_with_its_ids(name: str, tmp_path: Path) -> None:
    theirs, folder = given(name, tmp_path)
    ours = load_vocabulary(folder)
    assert ours.specials == ROLES[name]
    assert ("Precompiled" in ours.json) == (name != "Roberta")
    encoded = theirs(SENTENCES, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    ids, lengths = WordCache(ours).encode(SENTENCES)
    special = SENTENCES.index("<mask> [CLS] <unk>")
    starts = [0, *lengths.cumsum()]
    for i, sentence in enumerate(SENTENCES):
        found = ids[starts[i] : starts[i + 1]].tolist()
        if i == special:  # to a unigram model of theirs special tokens are pieces that it finds in text
            assert not set(found) & {ours.cls, ours.mask}
        else:
            assert found == encoded[i], sentence
    again = tmp_path / "again.json"
    again.write_text(ours.json, "utf-8")
    assert load_vocabulary(again).json == ours.json


def test_robertas_two_files_load_alike(tmp_path: Path) -> None:
    bpe = trained("bpe")
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_text(bpe.files()[name], "utf-8")
    assert load_vocabulary(tmp_path).json == load_vocabulary(tmp_path / "vocab.json").json == bpe.json


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_exported_tokenizers_give_the_ids_of_the_vocabulary(
    kind: str, lowercase: bool, tmp_path: Path
) -> None:
    ours = trained(kind, lowercase)
    write_tokenizer(ours.json, tmp_path, 48)
    for loader in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast):
        theirs = loader.from_pretrained(tmp_path)
        assert theirs.model_max_length == 48
        for role, token in ours.specials._asdict().items():
            assert getattr(theirs, f"{role}_token") == token
            assert getattr(theirs, f"{role}_token_id") == getattr(ours, role)
        plain = [s for s in SENTENCES if "<mask>" not in s] + ["  white\n space \u3000around\u00a0 "]
        ids, lengths = WordCache(ours).encode(plain)
        expected = [row.tolist() for row in np.split(ids, lengths.cumsum()[:-1])]
        assert theirs(plain, add_special_tokens=False)["input_ids"] == expected
        framed = theirs("the boat", "a man")
        the_boat, a_man = (WordCache(ours).encode([text])[0].tolist() for text in ("the boat", "a man"))
        assert framed["input_ids"] == [ours.cls, *the_boat, ours.sep, *a_man, ours.sep]
        assert framed["token_type_ids"] == [0] * (len(the_boat) + 2) + [1] * (len(a_man) + 1)
        # A mask token in a sentence takes the place of a word: what follows it is encoded as in running text.
        whole = WordCache(ours).encode(["the man. A"])[0].tolist()
        man = len(WordCache(ours).encode(["the man"])[0])
        blank = theirs(f"the {theirs.mask_token}. A", add_special_tokens=False)["input_ids"]
        the = WordCache(ours).encode(["the"])[0].tolist()
        assert blank == [*the, ours.mask, *whole[man:]]
        assert theirs.decode(whole, clean_up_tokenization_spaces=False).strip() == (
            "the man. a" if lowercase else "the man. A"
        )
    assert json.loads((tmp_path / "special_tokens_map.json").read_text())["mask_token"] == ours.specials.mask


@pytest.mark.parametrize("lowercase", [False, True])
def test_files_of_a_folder_that_normalise_differently_are_refused(lowercase: bool, tmp_path: Path) -> None:
    wordpiece = trained("wordpiece", False)
    transformers.BertTokenizer(vocab=wordpiece.ids, do_lower_case=lowercase).save_pretrained(tmp_path)
    assert load_vocabulary(tmp_path).normalization.lowercase == lowercase  # type: ignore[attr-defined]
    path = tmp_path / "tokenizer_config.json"
    stated = json.loads(path.read_text())
    path.write_text(json.dumps(stated | {"do_lower_case": not lowercase}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.tokenize("Word") == theirs.tokenize("word" if not lowercase else "Word")
    assert (theirs.tokenize("Word") == theirs.tokenize("word")) is not lowercase, "it follows this file"
    with pytest.raises(UserError) as caught:
        load_vocabulary(tmp_path)
    flags = [str(flag).lower() for flag in (not lowercase, lowercase)]
    assert str(caught.value).startswith(
        f"{path}: do_lower_case is {flags[0]}, in tokenizer.json it is {flags[1]}"
    )
    assert load_vocabulary(tmp_path, lowercase=True).size == wordpiece.size, "the flag is given"
    path.write_text(json.dumps(stated | {"do_lower_case": None, "strip_accents": not lowercase}))
    with pytest.raises(UserError, match="strip_accents is"):
        load_vocabulary(tmp_path)
    general = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": not lowercase}
    path.write_text(json.dumps(stated | general))
    assert load_vocabulary(tmp_path).size == wordpiece.size, "a class without such flags"


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("strip", [False, True, None])
def test_transformers_strips_accents_where_we_do(
    kind: str, lowercase: bool, strip: bool | None, tmp_path: Path
) -> None:
    """In the folder that `vocab` writes and in the one that `export` writes."""
    lines = ["L'Été à l'école, où êtes-vous?", "अपने घर में हिन्दी किताब", "Ёлка и чайка, İstanbul"]
    settings = VocabularySettings(
        kind=kind, size=400, min_frequency=1, lowercase=lowercase, strip_accents=strip
    )
    ours = train_vocabulary([Document("0", "\n".join(lines * 9))], settings)
    save_vocabulary(ours, tmp_path / "vocab")
    (tmp_path / "export").mkdir()
    write_tokenizer(ours.json, tmp_path / "export", 48)
    expected = [WordCache(ours).encode([line])[0].tolist() for line in lines]
    made = ["vocab", "export"]
    loaders = [transformers.PreTrainedTokenizerFast, transformers.AutoTokenizer]
    theirs = [loaders[0](tokenizer_file=str(tmp_path / name / "tokenizer.json")) for name in made]
    theirs += [loader.from_pretrained(tmp_path / "export") for loader in loaders]
    if kind == "wordpiece":
        config = json.loads((tmp_path / "export/tokenizer_config.json").read_text())
        assert config["do_lower_case"] == lowercase
        strips = config["do_lower_case"] if config["strip_accents"] is None else config["strip_accents"]
        assert strips == ours.strips_accents
        theirs.append(transformers.BertTokenizer.from_pretrained(tmp_path / "export"))
        if strip is not None and strip != lowercase:  # else the files do not name the flags
            theirs.append(transformers.BertTokenizer.from_pretrained(tmp_path / "vocab"))
    for tokenizer in theirs:
        assert tokenizer(lines, add_special_tokens=False)["input_ids"] == expected
