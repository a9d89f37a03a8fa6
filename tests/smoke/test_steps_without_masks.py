"""Training on shards in which most examples have no masked token: some steps learn from pairs alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.records import Examples, concatenate
from data_pipeline.shards.index import Index
from data_pipeline.shards.shard import BlockReader
from data_pipeline.vocabulary.files import load_vocabulary
from pretrain.run.metrics_log import read_metrics
from tests.command_line import Maskmill, described, setting
from tests.factories.shards import write_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multirank,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
KEPT = 3
"""One example in so many keeps its masks."""


def mostly_unmasked(examples: Examples) -> Examples:
    """The examples' original tokens; masks in one of KEPT only."""
    counts = np.diff(examples.masked_offsets)
    kept = np.arange(len(counts)) % KEPT == 0
    rows = np.repeat(kept, counts)
    tokens, owners = examples.tokens.copy(), np.repeat(examples.offsets[:-1], counts)
    places = owners + examples.masked_positions
    tokens[places[~rows]] = examples.masked_ids[~rows]
    return replace(
        examples,
        tokens=tokens,
        masked_positions=examples.masked_positions[rows],
        masked_ids=examples.masked_ids[rows],
        masked_offsets=np.r_[0, np.cumsum(np.where(kept, counts, 0))],
    )


def shards(given: Index, folder: Path, pairs: bool) -> None:
    """Write mostly unmasked shards like the given ones; without pairs, each example is one segment."""
    parts = []
    for split in (given.train, given.splits["held_out"]):
        examples = mostly_unmasked(concatenate(list(BlockReader(given, split).all_blocks())))
        lengths = np.diff(examples.offsets).astype(examples.first_lengths.dtype)
        single = replace(examples, labels=np.full_like(examples.labels, -1), first_lengths=lengths)
        parts.append([examples if pairs else single])
    settings = {**given.settings, **({} if pairs else {"sequences": "doc_sentences"})}
    length = settings.pop("sequence_length")
    vocabulary = load_vocabulary(given.path("tokenizer.json"))
    write_folder(folder, *parts, given.block_examples, length, vocabulary, **settings)


@pytest.mark.parametrize("name", ["bert", "mlm"])
def test_steps_without_a_masked_token_train_on(
    name: str, maskmill: Maskmill, here: None, tiny: list[str], tmp_path: Path
) -> None:
    shards(Index.load(setting(tiny, "data.out")), tmp_path / "shards", pairs=name == "bert")
    run = [
        *tiny, f"objective.name={name}", f"train.shards={tmp_path}/shards", f"run.dir={tmp_path}/run",
        "train.global_batch=1", "train.micro_batch=1", "train.steps=12", "train.checkpoint_every=0",
        "train.eval_examples=2", "run.ranks=1", "train.on_spike=skip", "train.on_nan=stop",
    ]  # fmt: skip
    maskmill("train", "demo", *run)
    lines = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "train"]
    assert [line["step"] for line in lines] == [*range(1, 13)]
    with_masks = [line for line in lines if "mlm_loss" in line]
    assert 0 < len(with_masks) < 12
    for line in lines:
        of_terms = [line[key] for key in ("mlm_loss", "nsp_loss") if key in line]
        assert np.isfinite([*of_terms, line["grad_norm"]]).all()
        assert line.get("loss", 0.0) == pytest.approx(sum(of_terms))
        assert (line["grad_norm"] > 0) == bool(of_terms)
    assert described(maskmill, tmp_path / "run")["step"] == 12
    assert "12" in maskmill("status", str(tmp_path / "run")).stdout
