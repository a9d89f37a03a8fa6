"""The model card of a real run of two attempts: complete, accepted by the hub's parser, and it tells no secrets."""

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from data_pipeline.settings import settings_affecting_bytes
from data_pipeline.sources.snapshot import name_only
from launch.recipe import load_config
from pretrain.export.card import LOAD, PUE, estimate, recipe_yaml, watts
from pretrain.export.hub import PLACEHOLDER
from pretrain.run.events import Attempt, read_attempts
from pretrain.run.folder import sealed_lines
from tests.command_line import Maskmill, as_only_rank, setting
from tests.factories.tasks import FILES, write

# what DeepSpeed's imports give rise to in a process of pytest's
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SECTIONS = [
    "How to use it",
    "Data",
    "Recipe",
    "Training",
    "Hardware, time and energy",
    "Scores on held-out text",
    "How to reproduce it",
    "Proof of the export",
    "Limits and bias",
    "License",
    "Citation",
]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name nobody else is to learn."""
    return tmp_path_factory.mktemp("secret_client")


@pytest.fixture(scope="module")
def settings(tiny: list[str], private: Path) -> list[str]:
    shutil.copy(setting(tiny, "data.sources"), private / "minutes.txt")
    shutil.copytree(setting(tiny, "data.out"), private / "shards")
    changed = {
        "data.sources": private / "minutes.txt",
        "data.out": private / "shards",
        "run.dir": private / "run",
    }
    kept = [pair for pair in tiny if pair.partition("=")[0] not in changed]
    return [*kept, *(f"{key}={value}" for key, value in changed.items()), "export.license=cc-by-4.0"]


@pytest.fixture(scope="module")
def run(settings: list[str], private: Path, maskmill: Maskmill) -> Path:
    with as_only_rank():
        maskmill("train", "demo", *settings, "run.stop_after=2")
    maskmill("train", "demo", *settings, "run.ranks=2")
    maskmill("export", str(private / "run"))
    return private / "run"


@pytest.fixture(scope="module")
def card(run: Path) -> ModelCard:
    return ModelCard.load(run / "export" / "README.md")


def table(card: ModelCard, section: str) -> dict[str, str]:
    text = card.text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| (.+?) \| (.*) \|$", text, re.MULTILINE))


def test_the_hub_reads_its_metadata(card: ModelCard) -> None:
    data = card.data
    assert (data.license, data.library_name, data.pipeline_tag) == ("cc-by-4.0", "transformers", "fill-mask")
    assert data.language is None  # nobody stated one
    assert {result.metric_name for result in data.eval_results or []} == {
        "held_out_mask_loss",
        "held_out_mask_accuracy",
        "held_out_mask_perplexity",
        "held_out_nsp_accuracy",
    }
    assert re.findall(r"^## (.*)$", card.text, re.MULTILINE) == SECTIONS


def test_figures_are_those_of_the_run(card: ModelCard, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    attempts = read_attempts(run, summary)
    assert [attempt.ranks for attempt in attempts] == [1, 2]
    assert all(attempt.spent > 0 for attempt in attempts)
    told, training = table(card, "Hardware, time and energy"), table(card, "Training")
    hours = sum(attempt.spent * attempt.ranks * attempt.threads for attempt in attempts) / 3600
    assert float(told["CPU-hours (threads x hours), all attempts"]) == pytest.approx(hours, rel=0.06)
    assert told["hardware, by rank"] == f"1 x {summary['device']}; 2 x {summary['device']}"
    assert told["times it was started"] == "2"
    assert told["energy"].startswith("not estimated: no highest power is known of ")
    assert training["steps done (accepted updates)"] == "4 of 4"
    assert training["examples seen"] == "48"
    assert training["parameters"] == f"{summary['parameters']:,}"
    scores = table(card, "Scores on held-out text")
    assert scores["loss at [MASK]"].startswith(f"{summary['held_out_mask_loss']:.3f} (unigram")
    assert f"{summary['held_out_mask_unigram_loss']:.3f}" in scores["loss at [MASK]"]
    assert "commoner label" in scores["next-sentence accuracy"]
    assert next(iter(scores)) == "loss at [MASK]" or "---" in next(iter(scores)), "what leads comes first"
    assert (
        "2.2e-16 in float64" in (proof := table(card, "Proof of the export")["mlm logits"])
        or "allowed" in proof
    )


def test_blanks_are_kept_in_the_run_and_none_of_its_text_is_published(card: ModelCard, run: Path) -> None:
    found = json.loads((run / "samples.json").read_text())
    assert (found["step"], found["held_out"]) == (4, True)
    assert found["samples"], "each a blank in held-out text"
    for sample in found["samples"]:
        assert len(sample["guesses"]) == 3
        assert f"{sample['before']} " not in card.text or len(sample["before"]) < 12
    report = (run / "report.html").read_text()
    assert ">Blanks</h2>" in report
    assert f"<td>{found['samples'][0]['word']}</td>" in report


def test_it_tells_no_folders(card: ModelCard, private: Path) -> None:
    assert (
        table(card, "Data")["sources, by name"] == "text.txt"
    )  # as the shards were made, before it was renamed
    assert "secret" not in card.content
    assert str(private.parent) not in card.content


def test_it_has_a_title_of_its_own_and_says_what_it_was_trained_from(card: ModelCard) -> None:
    assert re.search(r"^# (.*)$", card.text, re.MULTILINE)[1] == "bert-2x32"  # type: ignore[index]
    assert "It was pretrained from raw text with Maskmill" in card.text
    assert card.data.base_model is None
    assert table(card, "Data")["data.separators"] == "both"


def test_its_recipe_is_the_run(card: ModelCard, settings: list[str], tmp_path: Path) -> None:
    """What decides shards and weights, read back from the card, is what the run had."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(re.search(r"```yaml\n(.*?)```", card.text, re.DOTALL).group(1))  # type: ignore[union-attr]
    ours, told = load_config("demo", settings), load_config(str(recipe), [])
    assert settings_affecting_bytes(told.data) == settings_affecting_bytes(ours.data)
    for group in ("vocabulary", "encoder", "optim", "schedule", "objective"):
        assert getattr(told, group) == getattr(ours, group)
    assert told.train.steps == 4
    assert told.train.global_batch == 12


def test_a_recipe_with_phases_is_told_whole(tmp_path: Path) -> None:
    ours = load_config("bert_large", [])
    ours.data.sources = ["s3://key:pw@bucket/folder/wiki.jsonl.zst?sig=abc", "/home/me/books"]
    text = recipe_yaml(ours)
    assert not re.search(r"pw|abc|/home|bucket", text)
    (tmp_path / "recipe.yaml").write_text(text)
    told = load_config(str(tmp_path / "recipe.yaml"), [])
    assert told.data.sources == ["wiki.jsonl.zst", "books"]
    for ours_now, told_now in zip(ours.phases, told.phases, strict=True):
        assert told_now["train"] == ours_now["train"]
        assert told_now["data"]["sequence_length"] == ours_now["data"]["sequence_length"]


def test_its_snippets_run(card: ModelCard, run: Path) -> None:
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    assert len(blocks) == 2
    for code in blocks:
        exec(compile(code.replace(PLACEHOLDER, str(run / "export")), "card", "exec"), names)
    assert len(names["guesses"]) == 5
    assert names["vectors"].shape[2] == 32


def test_the_license_is_the_settings_the_options_or_not_stated(
    run: Path, tmp_path: Path, maskmill: Maskmill
) -> None:
    maskmill("export", str(run), "--out", str(tmp_path / "mit"), "--license", "mit")
    assert ModelCard.load(tmp_path / "mit" / "README.md").data.license == "mit"
    config = run / "config.yaml"
    told = config.read_text()
    try:
        config.write_bytes(sealed_lines(told.replace("license: cc-by-4.0", "license: ''")))
        maskmill("export", str(run), "--out", str(tmp_path / "none"))
    finally:
        config.write_text(told)
    card = ModelCard.load(tmp_path / "none" / "README.md")
    assert card.data.license is None
    assert "## License\n\nNot stated." in card.text


def test_a_changed_setting_or_vocabulary_is_not_exported_with_a_proof(
    run: Path, private: Path, tmp_path: Path, maskmill: Maskmill
) -> None:
    out = tmp_path / "model"
    config = run / "config.yaml"
    kept = config.read_text()
    for old, new, says in (
        ("heads: 2", "heads: 4", "encoder.heads=4, trained with 2"),
        ("activation: gelu_tanh", "activation: relu", "encoder.activation=relu, trained with gelu_tanh"),
        ("separators: both", "separators: mid", "data.separators=mid, trained with both"),
        ("  lr: 0.01\n", "  lr: 0.02\n", "optim.lr=0.02, trained with 0.01"),
    ):
        assert kept.count(old) >= 1, old
        config.write_bytes(sealed_lines(kept.replace(old, new)))
        refused = maskmill("export", str(run), "--out", str(out), code=2).stderr
        config.write_text(kept)
        assert f"config.yaml: says {says} (expected the settings" in refused
        assert refused.count("\n") == 1
    tokenizer = private / "shards" / "tokenizer.json"
    data = tokenizer.read_bytes()
    for changed in (data.replace(b'"sea"', b'"ses"'), data + b" ", data[:-9]):
        assert changed != data
        tokenizer.write_bytes(changed)
        refused = maskmill("export", str(run), "--out", str(out), code=2).stderr
        assert "tokenizer.json: bytes changed since index.json was written" in refused
        assert refused.count("\n") == 1
    tokenizer.write_bytes(data)
    assert not out.exists()


def test_other_sources_than_those_of_the_shards_are_not_trained_on(
    settings: list[str], private: Path, tmp_path: Path, maskmill: Maskmill
) -> None:
    (private / "other.txt").write_text("Another text.\n\nAnd one more.\n")
    own = [pair for pair in settings if not pair.startswith(("data.sources=", "run.dir="))]
    own.append(f"run.dir={tmp_path / 'run'}")
    refused = maskmill("train", "demo", *own, f"data.sources={private}/other.txt", code=2).stderr
    assert "shards: its shards were made from text.txt, not from data.sources=" in refused
    assert refused.count("\n") == 1
    assert not (tmp_path / "run").exists()
    with as_only_rank():  # the recipe's own sources are nobody's statement
        maskmill("train", "demo", *own, "train.steps=1")
    assert "text.txt" in (tmp_path / "run" / "config.yaml").read_text()
    assert "factbook" not in (tmp_path / "run" / "config.yaml").read_text()


def test_sources_by_name() -> None:
    assert name_only("/home/me/client x/books.jsonl.zst") == "books.jsonl.zst"
    assert name_only("s3://key:secret@bucket/a/b.parquet?token=abc#x") == "b.parquet"
    assert name_only("corpus/") == "corpus"
    assert name_only("https://user:pw@host") == "***@host"


def attempt(device: str, kind: str, ranks: int, seconds: float) -> Attempt:
    return Attempt(
        1, datetime.now(UTC), 0, ranks=ranks, device=device, device_type=kind, threads=4, spent=seconds
    )


def test_energy_is_a_range_or_nothing() -> None:
    h100 = attempt("NVIDIA H100 80GB HBM3", "cuda", 8, 3600)
    found = estimate([h100, attempt("NVIDIA A100-SXM4-40GB", "cuda", 4, 1800)])
    assert found is not None
    assert found.least == pytest.approx((8 * 0.7 + 2 * 0.4) * LOAD[0] * PUE[0])
    assert found.most == pytest.approx((8 * 0.7 + 2 * 0.4) * LOAD[1] * PUE[1])
    assert estimate([h100, attempt("Tomorrow's GPU", "cuda", 8, 3600)]) is None
    assert estimate([h100, attempt("AMD EPYC", "cpu", 8, 3600)]) is None
    names = {"NVIDIA H100 PCIe": 350, "NVIDIA H200": 700, "NVIDIA A100 80GB PCIe": 300, "NVIDIA L40S": 350}
    assert {name: watts(name) for name in names} == names
    assert watts("NVIDIA A10G") is None
    assert watts("NVIDIA L40") is None


def test_scores_on_tasks_are_those_of_the_weights_that_the_card_describes(
    run: Path, maskmill: Maskmill, tmp_path: Path
) -> None:
    """They reach the report at once, and the card when the same checkpoint is exported again."""
    write(tmp_path / "RTE", FILES["rte"])
    quick = ["epochs=1", "max_length=32", "batch=2", "threads=1"]
    maskmill("evaluate", str(run), "rte", "--data", str(tmp_path), *quick)
    maskmill("report", str(run))
    page = (run / "report.html").read_text()
    assert '<section id="tasks"><h2>Tasks</h2>' in page
    assert '<th scope="row">rte</th><td>accuracy</td>' in page
    maskmill("export", str(run))
    card = (run / "export" / "README.md").read_text()
    [row] = re.findall(r"^\| rte \|.*", card, re.M)
    result = json.loads((run / "evaluation" / "rte" / "result.json").read_text())
    score, floor = (result[kind]["dev"]["accuracy"]["median"] for kind in ("scores", "not_pretrained"))
    assert row == f"| rte | accuracy | {score:.1f} |  | {floor:.1f} | 100.0 |"
    assert "no downstream task" not in card
    result["encoder"]["weights"] = "other"
    (run / "evaluation" / "rte" / "result.json").write_text(json.dumps(result))
    maskmill("export", str(run))
    card = (run / "export" / "README.md").read_text()
    assert "Scores on tasks" not in card
    assert "no downstream task" in card
