"""A published model on text with new words, from the command line: vocabulary, shards, training, export."""

import json
from pathlib import Path

import pytest
import transformers
from safetensors.torch import load_file

from data_pipeline.vocabulary.files import load_vocabulary
from pretrain.export.tokenizer import INPUTS
from tests.command_line import Maskmill, write_text
from tests.factories.encoders import NO_SEGMENTS, write_encoder, write_modernbert
from tests.factories.vocabularies import trained

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multirank,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
TEXT = "Nephrology treats nephropathy (dialysis), and nephrology sees glomerulonephritis. "
WORD = "roberta.embeddings.word_embeddings.weight"


def test_text_with_new_words_to_model(maskmill: Maskmill, here: None, tmp_path: Path) -> None:
    old = trained("bpe")
    write_encoder(tmp_path / "old", "RobertaForMaskedLM", old, NO_SEGMENTS, {"type_vocab_size": 1})
    write_text(tmp_path / "text.txt", documents=30)
    with (tmp_path / "text.txt").open("a") as file:
        file.write(f"\n{TEXT * 12}\n" * 8)
    settings = [
        "init_from=old", "data.sources=text.txt", "data.vocab=vocabulary", "data.out=shards", "data.held_out=0.2",
        "data.sequence_length=48", "data.workers=1", "run.dir=run", "run.threads=1", "train.eval_every=0",
        "train.global_batch=4", "train.micro_batch=2", "train.log_every=1",
    ]  # fmt: skip
    extend = ("vocab", "domain", "--extend", "old", *settings, "vocabulary.new_words=8")
    shown = maskmill(*extend, cwd=tmp_path).stdout
    assert "nephrology" in shown
    assert "Tokens per 1,000 words" in shown
    files = {path.name: path.read_bytes() for path in (tmp_path / "vocabulary").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "new_words.json"} <= files.keys()
    again = maskmill(*extend, cwd=tmp_path).stdout
    assert "already there" in again
    assert "nephrology" in again
    assert {path.name: path.read_bytes() for path in (tmp_path / "vocabulary").iterdir()} == files
    refused = maskmill(*extend, "vocabulary.min_frequency=3", cwd=tmp_path, code=2).stderr
    assert "holds another vocabulary: vocabulary.min_frequency=3" in refused

    maskmill("prepare", "domain", *settings, cwd=tmp_path)
    size = load_vocabulary(tmp_path / "vocabulary").size
    for name, steps in (("started", 0), ("run", 2)):
        run = [*settings, f"train.steps={steps}", f"run.dir={name}"]
        printed = maskmill("train", "domain", *run, cwd=tmp_path).stdout
        assert f"old: 500 entries of the vocabulary extended to {size} (init_new_words=mean)" in printed
        maskmill("export", name, "--out", f"{name}_out", cwd=tmp_path)
    before, started, after = (
        load_file(tmp_path / name / "model.safetensors")[WORD] for name in ("old", "started_out", "run_out")
    )
    entries = json.loads(files["new_words.json"])["entries"]
    assert started[:500].equal(before)
    assert len(started) == len(after) == size == 500 + len(entries)
    for entry in entries:
        assert (started[entry["id"]] - before[entry["old_ids"]].mean(0)).abs().max() < 1e-6
    assert not after.equal(started)

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run_out")
    assert "Ġnephrology" in tokenizer.tokenize("some nephrology,")
    transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "run_out")


FINNISH = (
    "Taulukkolaskenta avaa taulukon, ja taulukkolaskennassa on soluja. Asiakirja tallennetaan kansioon. "
)
KOREAN = "스프레드시트 문서를 열고 스프레드시트 셀을 선택합니다. 문서 저장하기. "


@pytest.mark.parametrize(
    ("class_name", "longer", "piece"),
    [
        ("BertForMaskedLM", "init_positions=interpolate", "taulukkolaskenta"),
        ("RobertaForMaskedLM", "init_positions=repeat", "ĠTaulukkolaskenta"),
        ("ModernBertForMaskedLM", "encoder.rope_theta=320000", "ĠTaulukkolaskenta"),
    ],
)
def test_other_languages_with_new_words_and_longer_texts(
    class_name: str, longer: str, piece: str, maskmill: Maskmill, here: None, tmp_path: Path
) -> None:
    if class_name.startswith("Modern"):
        write_modernbert(tmp_path / "old")
    elif class_name.startswith("Roberta"):
        fields = {"type_vocab_size": 1}
        write_encoder(tmp_path / "old", class_name, trained("bpe"), NO_SEGMENTS, fields)
    else:
        write_encoder(tmp_path / "old", class_name, trained("wordpiece"), INPUTS, {})
    for name, text in (("fi", FINNISH), ("ko", KOREAN)):
        lines = [json.dumps({"text": "\n".join([text] * 12)}) for _ in range(8)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    settings = [
        "init_from=old", "data.sources=[fi.jsonl, ko.jsonl]", "data.languages=[fi, ko]", "data.vocab=vocabulary",
        "data.out=shards", "data.held_out=0.2", "data.sequence_length=96", "data.workers=1", "run.dir=run",
        "run.threads=1", "train.eval_every=0", "train.global_batch=4", "train.micro_batch=2", "train.steps=2",
        "encoder.max_positions=96", longer,
    ]  # fmt: skip
    maskmill("vocab", "domain", "--extend", "old", *settings, "vocabulary.new_words=20", cwd=tmp_path)
    maskmill("prepare", "domain", *settings, cwd=tmp_path)
    started = maskmill("train", "domain", *settings, "train.steps=0", "run.dir=started", cwd=tmp_path).stdout
    maskmill("train", "domain", *settings, cwd=tmp_path)
    maskmill("export", "started", "--out", "started_out", cwd=tmp_path)
    maskmill("export", "run", "--out", "out", cwd=tmp_path)
    entries = json.loads((tmp_path / "vocabulary" / "new_words.json").read_bytes())["entries"]
    korean = [entry for entry in entries if "word" in entry and not entry["word"].isascii()]
    unknown = [entry for entry in korean if not entry["old_ids"]]
    assert len(korean) > 1
    assert len(unknown) == (len(korean) if class_name == "BertForMaskedLM" else 0), "bytes are known"
    assert ("of the new ones are fresh" in started) == bool(unknown)
    before = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "started_out")
    rows = before.get_input_embeddings().weight[[entry["id"] for entry in korean]]
    assert len(rows.unique(dim=0)) == len(korean)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == class_name
    assert model.config.max_position_embeddings - 2 * class_name.startswith("Roberta") == 96
    assert piece in tokenizer.tokenize("Taulukkolaskenta avaa")
    found = tokenizer(FINNISH * 20, return_tensors="pt", truncation=True, max_length=96)
    assert found["input_ids"].shape[1] == 96
    assert model(**found).logits.isfinite().all()
