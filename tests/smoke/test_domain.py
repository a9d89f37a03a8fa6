"""A published model on other text: docs/guides/domain.md as it stands, and longer texts in phases."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pretrain.export.tokenizer import INPUTS, PROBES
from tests.command_line import ROOT, Maskmill, described, write_text
from tests.factories.encoders import NO_SEGMENTS, write_encoder, write_modernbert
from tests.factories.vocabularies import TEXT, trained
from tests.pages import commands_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TINY = ["train.steps=2", "train.eval_every=0", "train.checkpoint_every=0", "run.threads=1", "data.workers=1"]
"""What makes the commands of the page take seconds."""
SCORED = ("before", "after", "before-general", "after-general")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader stands: a downloaded BERT and a ModernBERT, and two texts."""
    fields = {"max_position_embeddings": 512}
    write_encoder(
        tmp_path / "models" / "bert", "BertForPreTraining", trained("wordpiece"), INPUTS, fields, 512
    )
    write_modernbert(tmp_path / "models" / "modernbert", vocab_size=512, max_position_embeddings=1024)
    write_text(tmp_path / "my_text.txt", documents=30)
    write_text(tmp_path / "general.txt", documents=20, seed=1)
    return tmp_path


@pytest.mark.slow
def test_the_page(folder: Path, here: None, maskmill: Maskmill) -> None:
    said = {}
    for verb, *arguments in commands_of(ROOT / "docs/guides/domain.md", "tests/smoke/test_domain.py"):
        settings = TINY if verb in ("prepare", "train") else []
        said[verb, *arguments] = maskmill(verb, *arguments, *settings, cwd=folder).stdout
    [longer] = [text for words, text in said.items() if words[0] == "train" and "run.dir=long/run" in words]
    assert "models/bert: 512 positions extended to 1,024 (init_positions=repeat)" in longer
    for model, positions in (("mine", 512), ("new", 512), ("long", 1024)):
        bert = transformers.BertForPreTraining.from_pretrained(folder / model / "model")
        assert bert.config.max_position_embeddings == positions
    ids = torch.randint(10, 400, (1, 1000), generator=torch.Generator().manual_seed(0))
    assert bert(ids).prediction_logits.isfinite().all()
    far = transformers.ModernBertForMaskedLM.from_pretrained(folder / "far" / "model")
    assert far.config.max_position_embeddings == 8192
    assert far.config.rope_parameters["full_attention"]["rope_theta"] == 160_000
    results = [folder / "mine/scores" / name / "held_out/result.json" for name in SCORED]
    losses = {json.loads(path.read_text())["scores"]["dev"]["mask_loss"]["mean"] for path in results}
    assert len(losses) == len(SCORED), "of two models, each on two texts"


def test_preparing_refuses_a_folder_that_cannot_be_continued(
    folder: Path, here: None, maskmill: Maskmill
) -> None:
    """Which `train` would refuse too, after hours of work in vain."""
    start = ["init_from=models/bert", "data.sources=my_text.txt", "data.out=s", "data.held_out=0.2", *TINY]
    weights = folder / "models/bert/model.safetensors"
    tensors = load_file(weights)
    save_file(
        {name: one for name, one in tensors.items() if "layer.1" not in name}, weights, {"format": "pt"}
    )
    assert "lacks encoder.layers.1" in maskmill("prepare", "domain", *start, cwd=folder, code=2).stderr
    save_file(tensors, weights, {"format": "pt"})
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / "models/bert" / name).unlink()
    assert "no vocabulary in this folder" in maskmill("prepare", "domain", *start, cwd=folder, code=2).stderr
    assert not (folder / "s").exists()


@pytest.mark.slow
def test_a_published_modernbert_comes_back(tmp_path: Path, here: None, maskmill: Maskmill) -> None:
    write_modernbert(tmp_path / "models", vocab_size=512, max_position_embeddings=512)
    write_text(tmp_path / "my_text.txt", documents=30)
    start = ["init_from=models", "data.sources=my_text.txt", "data.out=s", "data.held_out=0.2", *TINY]
    maskmill("prepare", "domain", *start, cwd=tmp_path)
    for name, steps in (("same", 0), ("trained", 2)):
        maskmill("train", "domain", *start, f"train.steps={steps}", f"run.dir={name}", cwd=tmp_path)
        maskmill("export", name, "--out", f"{name}/model", cwd=tmp_path)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("models", "same/model"))
    assert all(one[name].equal(tensor) for name, tensor in two.items())
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "trained/model")
    assert (type(model).__name__, model.config.vocab_size) == (
        "ModernBertForMaskedLM",
        512,
    )  # more than entries
    before, after = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / n) for n in ("models", "same/model")
    )
    for text in PROBES:
        words = " " + " ".join(text.split())
        expected = before(words, add_special_tokens=False)["input_ids"]
        assert after(text)["input_ids"] == [before.cls_token_id, *expected, before.sep_token_id]


def test_no_step_saves_the_starting_weights(folder: Path, here: None, maskmill: Maskmill) -> None:
    start = ["init_from=models/bert", "data.sources=my_text.txt", "data.out=s", "data.held_out=0.2", *TINY]
    start += ["train.steps=0", "run.dir=run"]
    maskmill("prepare", "domain", *start, cwd=folder)
    printed = maskmill("train", "domain", *start, cwd=folder).stdout
    assert "step 0" in printed
    assert "held-out at [MASK]" in printed
    assert "finished at step 0; nothing to do" in maskmill("train", "domain", *start, cwd=folder).stdout
    assert described(maskmill, folder / "run")["checkpoints"] == ["step-00000000"]
    maskmill("export", "run", "--out", "out", cwd=folder)
    one, two = (load_file(folder / name / "model.safetensors") for name in ("models/bert", "out"))
    assert all(one[name].equal(tensor) for name, tensor in two.items())
    assert (
        "max_positions"
        in maskmill("plan", "domain", *start, "encoder.max_positions=64", cwd=folder, code=2).stderr
    )


@pytest.mark.slow
def test_a_roberta_reads_longer_texts_in_a_second_phase(
    tmp_path: Path, here: None, maskmill: Maskmill
) -> None:
    write_encoder(
        tmp_path / "roberta", "RobertaForMaskedLM", trained("bpe"), NO_SEGMENTS, {"type_vocab_size": 1}
    )
    (tmp_path / "text.txt").write_text("\n\n".join([TEXT[i : i + 900] for i in range(0, 3600, 300)]), "utf-8")
    (tmp_path / "longer.yaml").write_text(
        "extends: domain\n"
        "init_from: roberta\nencoder: {max_positions: 160}\ninit_positions: interpolate\n"
        "data: {sources: text.txt, held_out: 0.2}\nrun: {dir: run}\ntrain: {global_batch: 4, micro_batch: 2}\n"
        "phases:\n"
        "  - {name: short, data: {out: short, sequence_length: 48}, train: {steps: 1}}\n"
        "  - {name: long, data: {out: long, sequence_length: 160}, train: {steps: 1}}\n"
    )
    settings = [setting for setting in TINY if not setting.startswith("train.steps")]
    maskmill("prepare", "longer.yaml", *settings, cwd=tmp_path)
    printed = maskmill("train", "longer.yaml", *settings, cwd=tmp_path).stdout
    assert "64 positions extended to 160 (init_positions=interpolate)" in printed
    maskmill("export", "run", "--out", "out", cwd=tmp_path)
    model = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model(**tokenizer(TEXT[:400], return_tensors="pt", truncation=True)).logits.isfinite().all()
    with pytest.raises(AssertionError, match=r"activation=gelu_tanh \(there: gelu\)"):
        maskmill("train", "longer.yaml", "encoder.activation=gelu_tanh", *settings, cwd=tmp_path)
