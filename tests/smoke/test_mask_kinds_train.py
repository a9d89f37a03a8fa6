"""Every kind of masking through the real command line: prepared with it, and trained with it anew for fifty steps."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.loader.loader import shards_vocabulary
from data_pipeline.loader.packing import original_tokens
from data_pipeline.records import Examples, concatenate
from data_pipeline.settings import MASKINGS
from data_pipeline.shards.index import Index
from data_pipeline.shards.shard import BlockReader
from tests.command_line import WORDS, Maskmill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("here"),
    # what DeepSpeed's imports give rise to in a process of pytest's
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

STEPS = [
    "train.steps=50",
    "train.checkpoint_every=0",
    "run.ranks=1",
    "optim.lr=3e-2",
    "data.dupe_factor=4",
]
NAMES = [
    "old kings",
    "dark water",
    *(f"captain {word}" for word in WORDS),
    *(f"stone {word}" for word in WORDS),
]


def masks_of(folder: Path) -> tuple[float, float, list[tuple[list[str], list[bool]]]]:
    """(share of masked words that are masked in part, masked words in a row) of the shards in `folder`, and each
    text's words with whether they are masked."""
    index = Index.load(folder)
    pieces = shards_vocabulary(index)
    examples = concatenate(list(BlockReader(index, index.train).all_blocks()))
    return _measured(examples, original_tokens(examples), pieces.continuation, pieces.tokens)


def _measured(
    examples: Examples, originals: np.ndarray, continuation: np.ndarray, tokens: list[str]
) -> tuple[float, float, list[tuple[list[str], list[bool]]]]:
    masked = np.zeros(len(originals), bool)
    masked[np.repeat(examples.offsets[:-1], np.diff(examples.masked_offsets)) + examples.masked_positions] = (
        True
    )
    partly, texts, runs = 0, [], []
    for low, high in pairwise(examples.offsets):
        starts = [i for i in range(low, high) if not continuation[originals[i]]]
        groups = [range(a, b) for a, b in pairwise([*starts, high])]
        partly += sum(0 < sum(masked[list(g)]) < len(g) for g in groups)
        words = ["".join(tokens[originals[i]].removeprefix("##") for i in g) for g in groups]
        hit = [bool(masked[list(g)].any()) for g in groups]
        texts.append((words, hit))
        edges = np.flatnonzero(np.diff(hit, prepend=False, append=False))
        runs += (edges[1::2] - edges[::2]).tolist()
    return partly / sum(map(sum, (hit for _, hit in texts))), float(np.mean(runs)), texts


def units_covered(texts: list[tuple[list[str], list[bool]]]) -> tuple[int, int]:
    """How many of the names in the texts are covered whole, and in part."""
    whole, part = 0, 0
    names = set(NAMES)
    for words, hit in texts:
        for i in range(1, len(words) - 3):
            two = f"{words[i]} {words[i + 1]}"
            overlaps = any(f"{words[j]} {words[j + 1]}" in names for j in (i - 1, i + 1))
            if two in names and not overlaps:
                whole += hit[i] and hit[i + 1]
                part += hit[i] != hit[i + 1]
    return whole, part


@pytest.fixture(scope="module")
def small(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The tiny run with a vocabulary so small that some words are of several pieces, and a lexicon."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "names.txt").write_text("\n".join(NAMES))
    settings = [*tiny, f"data.vocab={folder}/vocabulary", "vocabulary.size=180"]
    maskmill("vocab", "demo", *settings)
    return [*settings, f"data.lexicon={folder}/names.txt"]


@pytest.mark.multirank
@pytest.mark.parametrize("kind", MASKINGS)
def test_fifty_steps(kind: str, small: list[str], maskmill: Maskmill, tmp_path: Path) -> None:
    shards, run = tmp_path / "shards", tmp_path / "run"
    settings = [
        *small,
        *STEPS,
        f"data.masking={kind}",
        f"data.out={shards}",
        f"run.dir={run}",
        "objective.name=mlm",
    ]
    maskmill("prepare", "demo", *settings)

    partly, row, texts = masks_of(shards)
    whole, part = units_covered(texts)
    assert (partly > 0.02) == (kind == "token"), "all but `token` mask whole words"
    assert {"token": row < 1.3, "span": row > 1.9, "ngram": 1.4 < row < 1.9}.get(kind, row > 1.1), row
    if kind in ("phrase", "entity"):
        assert whole > 15
        assert part == 0, "a name is covered as one"
    else:
        assert part > 0

    maskmill("train", "demo", *settings, "data.dynamic_masking=true")
    identity = json.loads((run / "run.json").read_text())["identity"]["data.dynamic_masking"]
    assert identity["masking"] == kind
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 50
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.8, losses


@pytest.mark.multirank
def test_stages_in_one_run_that_is_stopped_between(
    tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    """A run through the three stages of ERNIE, stopped within the second: the same losses as one never stopped."""
    lexicon = tmp_path / "names.txt"
    lexicon.write_text("\n".join(NAMES))
    stages = "data.mask_stages=[token:3, phrase:3, entity]"
    settings = [
        *tiny,
        "train.steps=8",
        "run.ranks=1",
        f"data.lexicon={lexicon}",
        f"data.out={tmp_path / 'shards'}",
    ]
    maskmill("prepare", "demo", *settings)
    dynamic = [*settings, "data.dynamic_masking=true", stages]
    maskmill("train", "demo", *dynamic, f"run.dir={tmp_path / 'one'}")
    maskmill("train", "demo", *dynamic, f"run.dir={tmp_path / 'two'}", "run.stop_after=4")
    assert (
        "data.dynamic_masking"
        in maskmill("train", "demo", *settings, f"run.dir={tmp_path / 'two'}", code=2).stderr
    )
    lexicon.write_text("old kings")
    assert "lexicon" in maskmill("train", "demo", *dynamic, f"run.dir={tmp_path / 'two'}", code=2).stderr
    lexicon.write_text("\n".join(NAMES))
    maskmill("train", "demo", *dynamic, f"run.dir={tmp_path / 'two'}")
    one, two = (
        [line["loss"] for line in map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
         if line["kind"] == "train"]
        for name in ("one", "two")
    )  # fmt: skip
    assert one == two
    assert len(one) == 8
