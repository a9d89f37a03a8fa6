"""Every verb of the real command line for every objective: from text to a model that transformers loads."""

import json
from pathlib import Path

import pytest
import transformers
from torch import Tensor

from pretrain.checkpoint.store import newest_checkpoint
from pretrain.export.export import family_folders
from pretrain.huggingface.base import Family
from pretrain.huggingface.registry import chosen_families
from pretrain.objectives.registry import OBJECTIVES, with_defaults
from pretrain.run.folder import read_config
from tests.command_line import Maskmill, described, setting
from tests.factories.members import member_settings
from tests.factories.teachers import teacher_settings

# what DeepSpeed's imports give rise to in a process of pytest's
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


QUICK = {"bert", "roberta", "electra", "xlnet"}
"""Members that `make test` has: pairs, byte-level BPE, two models, and two streams of attention with a memory."""
MEMBERS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OBJECTIVES]


MEMORY = {"xlnet": ["objective.xlnet.memory_length=16", "data.order=sequential"]}


@pytest.mark.parametrize("objective", MEMBERS)
def test_text_to_model(
    objective: str, here: None, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    run, data, made = tmp_path / "run", tmp_path / "shards", with_defaults(objective)
    settings = [
        *tiny,
        *member_settings(objective, maskmill, tmp_path),
        *MEMORY.get(objective, ()),
        f"run.dir={run}",
        f"data.out={data}",
    ]
    maskmill("prepare", "demo", *settings)
    assert "already prepared" in maskmill("prepare", "demo", *settings).stdout
    settings += teacher_settings(settings, tmp_path / "teacher")

    stopped = maskmill("train", "demo", *settings, "run.stop_after=2")
    assert described(maskmill, run)["status"] == "stopped"
    resumed = maskmill("train", "demo", *settings)
    assert "resuming from step 2 (bit-exact" in resumed.stdout
    assert "nothing to do" in maskmill("train", "demo", *settings).stdout
    assert stopped.stderr == resumed.stderr == ""

    facts = described(maskmill, run)
    assert (facts["status"], facts["step"], facts["attempts"]) == ("finished", 4, 2)
    assert facts["checkpoints"] == ["step-00000002", "step-00000004"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 2, 3, 4]
    losses = {f"{term}_loss" for term in made.terms}
    shown = {*made.metrics, *losses} | {
        "loss",
        "lr",
        "grad_norm",
        "trust_ratio",
        "mfu",
        "fill",
    }
    assert shown | {"tokens_per_s", "examples_per_s", "padding_share", "memory_gb", "data_wait_share"} <= set(
        lines[-2]
    )
    assert {"held_out_loss", *(f"held_out_{loss}" for loss in losses)} <= set(lines[-1])
    assert {f"held_out_{kind}_unigram_loss" for kind in made.words} <= set(lines[-1])
    assert (lines[0]["kind"], lines[0]["step"]) == ("eval", 0), "what the run starts from"
    assert [line["step"] for line in lines if line["kind"] == "eval"].count(0) == 1
    assert (run / "report.html").stat().st_size > 1000

    proof = maskmill("export", str(run), "--out", str(tmp_path / "model")).stdout
    families = chosen_families(made.families, read_config(run))
    assert f"in float64: {next(iter(families[0].heads))}" in proof
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    assert any(kind == "memory" for kind, _ in checkpoint._fragments()) == (objective in MEMORY)
    words = checkpoint.tensor("encoder.embeddings.word.weight")
    for folder, family in family_folders(families, tmp_path / "model").items():
        check_export(folder, family, words, maskmill)
        if family.pipeline == "fill-mask":
            mask = transformers.AutoTokenizer.from_pretrained(folder).mask_token
            filled = maskmill("fill", str(folder), f"the captain of the {mask}.").stdout
            assert filled.count("%") == 5
            check_held_out(folder, data, lines[-1], maskmill)


def check_held_out(folder: Path, shards: Path, trained: dict[str, float], maskmill: Maskmill) -> None:
    """`maskmill evaluate` finds in the exported model what training found in its own."""
    out = folder.parent / "scores"
    maskmill(
        "evaluate",
        str(folder),
        "held_out",
        "--data",
        str(shards),
        "--out",
        str(out),
        "--no-floor",
        "threads=1",
    )
    note = json.loads((out / "held_out" / "result.json").read_text())
    scores = {name: found["median"] for name, found in note["scores"]["dev"].items()}
    known = {name: trained[f"held_out_{name}"] for name in scores if f"held_out_{name}" in trained}
    assert {"mask_loss", "kept_accuracy", "random_loss"} <= known.keys()
    for name, value in known.items():
        assert scores[name] == pytest.approx(value * (100 if "accuracy" in name else 1), rel=1e-4)
    assert note["trivial"]["dev"]["mask_loss"] == pytest.approx(
        trained["held_out_mask_unigram_loss"], rel=1e-6
    )


def check_export(folder: Path, family: Family, words: Tensor, maskmill: Maskmill) -> None:
    """transformers loads it whole, and inspect tells when a file is changed, which this leaves as it was."""
    model, loading = getattr(transformers, family.export_class).from_pretrained(
        folder, output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model.get_input_embeddings().weight.equal(words)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("The sea") == tokenizer.tokenize("the sea")
    shown = described(maskmill, folder)
    assert (shown["architectures"], shown["hashes"]) == ([family.export_class], "all hold")

    config = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(f"{config}\n")
    assert "tokenizer_config.json" in maskmill("inspect", str(folder), code=2).stderr
    (folder / "tokenizer_config.json").write_text(config)


def test_inspect_tells_what_is_in_shards(tiny: list[str], maskmill: Maskmill) -> None:
    shards = setting(tiny, "data.out")
    facts = described(maskmill, shards)
    counts, split = facts["statistics"]["train"], facts["splits"]["train"]
    assert counts["examples"] == split["examples"] == sum(counts["length_histogram"])
    assert sum(counts["pair_labels"].values()) == counts["examples"]
    assert (
        counts["masked_as_mask"] + counts["masked_as_random"] + counts["masked_as_itself"] == counts["masked"]
    )
    printed = maskmill("inspect", shards, "--examples", "all", "--json").stdout.splitlines()
    assert len(printed) == split["examples"]
    example = json.loads(printed[0])
    assert set(example) == {
        "input_ids", "segment_ids", "is_random_next", "masked_lm_positions", "masked_lm_ids",
    }  # fmt: skip
    assert len(example["input_ids"]) == len(example["segment_ids"])
    assert "[CLS]" in maskmill("inspect", shards).stdout


def test_weights_of_another_run_or_model_are_a_start(
    here: None, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    maskmill("train", "demo", *tiny, f"run.dir={first}")
    maskmill("export", str(first))
    start = [*tiny, "run.stop_after=1", "optim.lr=0"]
    maskmill("train", "demo", *start, f"run.dir={second}", f"init_from={first}", "init_moments=true")
    maskmill("train", "demo", *start, f"run.dir={third}", f"init_from={first}/export")
    found = [newest_checkpoint(run) for run in (first, second, third)]
    assert found[1] is not None
    assert found[1].state["updates"] == 1, "the bias correction starts anew"
    for name in found[0].shapes:  # type: ignore[union-attr]
        one, two, three = (checkpoint.tensor(name) for checkpoint in found)  # type: ignore[union-attr]
        assert one.equal(two), name  # with a learning rate of 0 they are still what they started from
        assert one.equal(three), name
