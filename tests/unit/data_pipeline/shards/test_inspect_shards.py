"""The linter: its figures against plain counting, and one finding for each way in which data can be degenerate."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from data_pipeline.errors import UserError
from data_pipeline.loader.packing import original_tokens
from data_pipeline.records import Examples, concatenate
from data_pipeline.shards.index import Index, write_index
from data_pipeline.shards.lint import Repeats, lint
from data_pipeline.shards.shard import write_shard
from data_pipeline.shards.show import printed_examples, report, words_of
from data_pipeline.shards.statistics import packed_rows, padded_tokens
from launch.progress import late_stages
from tests.command_line import Maskmill, setting
from tests.factories.preparations import silent
from tests.factories.shards import SIZE, StubVocabulary, blocks_of, random_examples

SETTINGS = {
    "sequence_length": 24,
    "sequences": "segment_pair",
    "segment_ids": True,
    "dupe_factor": 1,
    "masked_lm_prob": 1 / 6,
    "max_predictions": 20,
    "mask_prob": 0.8,
    "random_prob": 0.1,
}


def masked(examples: Examples, shares: tuple[float, float] = (0.8, 0.1)) -> Examples:
    """With [MASK], random and kept tokens at the masked positions, in these shares of the first two."""
    tokens, draw = examples.tokens.copy(), np.random.default_rng(5).random(len(examples.masked_ids))
    rows = np.repeat(examples.offsets[:-1], np.diff(examples.masked_offsets)) + examples.masked_positions
    other = 5 + (examples.masked_ids - 4) % (SIZE - 5)  # never the same
    hidden = np.where(draw < shares[0], 3, np.where(draw < sum(shares), other, examples.masked_ids))
    tokens[rows] = hidden
    return replace(examples, tokens=tokens)


def folder_of(folder: Path, train: Examples, held_out: Examples | None = None, **changes: Any) -> Index:
    """A folder with these examples in two shards each; `changes`: to the settings, or `statistics`."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {}
    for name, examples in (("train", train), ("held_out", held_out)):
        parts = np.array_split(np.arange(len(examples)), 2) if examples is not None else []
        splits[name] = [
            write_shard(folder / f"{name}-{i:06d}.tar", blocks_of(examples.take(part), 16))  # type: ignore[union-attr]
            for i, part in enumerate(parts)
            if len(part)
        ]
    return write_index(
        folder,
        splits=splits,
        settings=SETTINGS | {k: v for k, v in changes.items() if k != "statistics"},
        block_examples=16,
        vocabulary=StubVocabulary(),  # type: ignore[arg-type]
        statistics=changes.get("statistics", {"reading": {"documents": 50}}),
    )


HEALTHY = masked(random_examples(400))


def test_healthy_data_is_left_in_peace(tmp_path: Path) -> None:
    facts = lint(folder_of(tmp_path, HEALTHY, masked(random_examples(60, 9))), silent)
    assert facts["findings"] == []
    assert facts["documents"] == 50
    assert "nothing to object to" in report(facts)


def test_figures_are_those_of_plain_counting(tmp_path: Path) -> None:
    index = folder_of(tmp_path, HEALTHY, bin_width=5)
    facts = json.loads(json.dumps(lint(index, silent, batch=7)))
    train = facts["splits"]["train"]
    lengths, originals = HEALTHY.lengths, original_tokens(HEALTHY)
    labels = Counter(HEALTHY.labels.tolist())
    assert train["labels"] == {"is_next": labels[0], "not_next": labels[1], "none": 0}
    assert train["second_segments"] == (HEALTHY.first_lengths < lengths).sum()
    rows = np.repeat(HEALTHY.offsets[:-1], np.diff(HEALTHY.masked_offsets)) + HEALTHY.masked_positions
    shown, hidden = HEALTHY.tokens[rows], originals[rows]
    masks = train["masks"]
    assert masks["mask"] == pytest.approx((shown == 3).mean())
    assert masks["kept"] == pytest.approx((shown == hidden).mean())
    assert masks["random_token"] == pytest.approx(((shown != 3) & (shown != hidden)).mean())
    assert masks["share_of_tokens"] == pytest.approx(len(rows) / len(originals))
    assert masks["most"] == np.diff(HEALTHY.masked_offsets).max()
    assert sum(train["lengths"]["histogram"]) == 400
    for count, low, high in zip(
        train["lengths"]["histogram"],
        [0, *train["lengths"]["up_to"]],
        train["lengths"]["up_to"],
        strict=False,
    ):
        assert count == ((lengths > low) & (lengths <= high)).sum()
    assert train["lengths"]["shortest"] == lengths.min()
    ids = Counter(originals.tolist())
    words = train["vocabulary"]
    assert words["never_seen"] == sum(ids[i] == 0 for i in range(5, SIZE))
    assert words["text_tokens"] == sum(ids[i] for i in range(4, SIZE))
    padding, bins = train["padding"], (lengths - 1) // 5
    assert padding["padded"] == padded_tokens(lengths, 7)
    assert padding["binned"] == sum(padded_tokens(lengths[bins == i], 7) for i in range(5))
    assert padding["packed"] == packed_rows(lengths, 7, 24) * 24
    assert padding["padded_full"] == pytest.approx(lengths.sum() / padding["padded"])
    assert facts["splits"]["held_out"]["examples"] == 0


def one_label(examples: Examples) -> Examples:
    return replace(examples, labels=examples.labels * 0)


def nine_tenths(examples: Examples) -> Examples:
    return replace(examples, labels=(np.arange(len(examples)) % 10 > 0).astype(np.int8))


def some_streams(examples: Examples) -> Examples:
    return replace(
        examples, labels=np.where(np.arange(len(examples)) < 9, -1, examples.labels).astype(np.int8)
    )


def no_second(examples: Examples) -> Examples:
    return replace(examples, first_lengths=examples.lengths.astype(np.uint16))


def unmasked(examples: Examples) -> Examples:
    none = examples.masked_offsets * 0
    return replace(
        examples,
        tokens=original_tokens(examples),
        masked_offsets=none,
        masked_ids=examples.masked_ids[:0],
        masked_positions=examples.masked_positions[:0],
    )


def few_unmasked(examples: Examples) -> Examples:
    counts = np.diff(examples.masked_offsets) * (np.arange(len(examples)) % 50 > 0)
    kept = np.repeat(np.arange(len(examples)) % 50 > 0, np.diff(examples.masked_offsets))
    return replace(
        examples,
        masked_offsets=np.concatenate([[0], np.cumsum(counts)]),
        masked_ids=examples.masked_ids[kept],
        masked_positions=examples.masked_positions[kept],
    )


def repeated(examples: Examples) -> Examples:
    return examples.take(np.arange(len(examples)) % 40)


def of_one_length(examples: Examples) -> Examples:
    return examples.take(np.flatnonzero(examples.lengths == 20))


def unknown(examples: Examples) -> Examples:
    return replace(
        examples,
        tokens=np.where(np.arange(len(examples.tokens)) % 20 == 0, 4, examples.tokens).astype(np.uint16),
    )


def few_words(examples: Examples) -> Examples:
    def folded(ids: np.ndarray) -> np.ndarray:
        return np.where(ids < 5, ids, 5 + ids % 90).astype(np.uint16)

    many = examples.take(np.arange(6000) % 400)
    return replace(many, tokens=folded(many.tokens), masked_ids=folded(many.masked_ids))


def capped(examples: Examples) -> Examples:
    """At most two masks in each."""
    within = np.arange(len(examples.masked_ids)) - np.repeat(
        examples.masked_offsets[:-1], np.diff(examples.masked_offsets)
    )
    kept = within < 2
    rows = np.repeat(examples.offsets[:-1], np.diff(examples.masked_offsets)) + examples.masked_positions
    tokens = examples.tokens.copy()
    tokens[rows[~kept]] = examples.masked_ids[~kept]
    return replace(
        examples,
        tokens=tokens,
        masked_offsets=np.concatenate([[0], np.cumsum(np.minimum(np.diff(examples.masked_offsets), 2))]),
        masked_ids=examples.masked_ids[kept],
        masked_positions=examples.masked_positions[kept],
    )


def same(examples: Examples) -> Examples:
    return examples


DEGENERATE: list[tuple[Callable[[Examples], Examples], dict[str, Any], str, str]] = [
    (no_second, {}, "all segment ids are equal", "data.segment_ids"),
    (one_label, {}, "all pairs have one label (is_next)", "documents of one sentence"),
    (nine_tenths, {}, "90% of the pairs have one label", "documents of one sentence"),
    (some_streams, {}, "9 of 400 examples have no label", "of two kinds"),
    (unmasked, {}, "masks are missing", "dynamic_masking"),
    (few_unmasked, {}, "8 examples have no token to predict", "masked_lm_prob"),
    (same, {"masked_lm_prob": 0.3}, "of the tokens are masked, where data.masked_lm_prob=0.3", "data.masking"),
    (capped, {"max_predictions": 2}, "data.max_predictions=2 caps what is predicted in", "lifts the cap"),
    (same, {"mask_prob": 0.5}, "are [MASK], where data.mask_replace_prob=0.5", "prepare them again"),
    (same, {"random_prob": 0.5}, "are random ones, where data.random_prob=0.5", "prepare them again"),
    (of_one_length, {}, "every example has 20 tokens", "short_seq_prob"),
    (same, {"sequence_length": 512}, "examples are short", "data.sequence_length"),
    (unknown, {}, "tokens are unknown", "maskmill vocab"),
    (few_words, {"dupe_factor": 15}, "of the vocabulary's entries never occur", "vocabulary.size"),
    (repeated, {}, "90% of the examples repeat another one", "data.duplicates"),
    (same, {"statistics": {"reading": {"documents": 3, "documents_without_tokens": 2}}}, "one document", "part"),
    (same, {"statistics": {"train": {"examples": 399, "tokens": 1}}}, "examples, tokens differ", "another program"),
    (
        same,
        {"statistics": {"reading": {"documents": 9, "bytes": 10**6, "invalid_characters": 5000}}},
        "5,000 byte sequences were no UTF-8",
        "iconv",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "settings", "what", "remedy"), DEGENERATE, ids=lambda v: getattr(v, "__name__", None)
)
def test_degenerate_data_is_said_in_plain_words(
    tmp_path: Path, change: Callable[[Examples], Examples], settings: dict[str, Any], what: str, remedy: str
) -> None:
    """That finding and no other."""
    facts = lint(folder_of(tmp_path, change(HEALTHY), **settings), silent)
    (finding,) = facts["findings"]
    assert what in finding["what"]
    assert remedy in finding["remedy"]
    shown = report(facts)
    assert finding["what"] in shown
    assert finding["remedy"] in shown


def test_the_cap_does_not_blind_the_expectation(tmp_path: Path) -> None:
    lengths = HEALTHY.lengths
    wanted = np.maximum(1, np.rint(lengths / 6))
    facts = lint(folder_of(tmp_path / "a", capped(HEALTHY), max_predictions=2), silent)
    masks = facts["splits"]["train"]["masks"]
    assert masks["expected_share"] == pytest.approx(wanted.sum() / lengths.sum())
    assert masks["capped_share"] == pytest.approx(np.minimum(wanted, 2).sum() / lengths.sum())
    assert masks["capped_examples"] == (wanted > 2).sum()
    share = f"{(wanted > 2).mean():.1%} of examples; without it the settings ask for {masks['expected_share']:.2%}"
    assert f"the cap data.max_predictions=2 binds in {share}" in report(facts)
    free = lint(folder_of(tmp_path / "b", HEALTHY, max_predictions=0), silent)
    assert free["findings"] == []
    assert "the cap" not in report(free)


def test_no_example_at_all(tmp_path: Path) -> None:
    facts = lint(folder_of(tmp_path, HEALTHY.take(np.arange(0))), silent)
    assert [f["what"] for f in facts["findings"]] == ["there is no training example"]
    assert "no training example" in report(facts)


def test_what_a_study_asks_for_is_no_finding(tmp_path: Path) -> None:
    streams = replace(no_second(HEALTHY), labels=np.full(400, -1, np.int8))
    cases = [
        (streams, {"sequences": "doc_sentences"}),
        (no_second(HEALTHY), {"segment_ids": False}),
        (of_one_length(HEALTHY), {"sequences": "full_sentences"}),
        (HEALTHY.take(np.arange(1200) % 400), {"dupe_factor": 3}),
    ]
    for number, (examples, settings) in enumerate(cases):
        assert lint(folder_of(tmp_path / str(number), examples, **settings), silent)["findings"] == []


def test_labels_have_the_names_of_their_pair_task(tmp_path: Path) -> None:
    index = folder_of(tmp_path / "order", HEALTHY, sequences="sentence_order")
    facts = lint(index, silent)
    labels = Counter(HEALTHY.labels.tolist())
    assert facts["splits"]["train"]["labels"] == {"in_order": labels[0], "swapped": labels[1], "none": 0}
    assert "A and B swapped" in report(facts)
    swapped = HEALTHY.take(np.flatnonzero(HEALTHY.labels == 1))
    (shown,) = printed_examples(
        folder_of(tmp_path / "one", swapped, sequences="sentence_order"), "train", "1", False
    )
    assert "(A and B swapped)" in shown
    recorded = {"train": {"pair_labels": {"in_order": 0, "swapped": 400}}}
    (finding,) = lint(
        folder_of(tmp_path / "wrong", HEALTHY, sequences="sentence_order", statistics=recorded), silent
    )["findings"]
    assert "pair_labels differ" in finding["what"]


def test_epochs_of_a_recipe(tmp_path: Path) -> None:
    index = folder_of(tmp_path, HEALTHY)
    plan = {"steps": 100, "global_batch": 64, "examples": 6400, "dynamic_masking": False}
    facts = lint(index, silent, plan=plan)
    assert facts["plan"]["epochs"] == 16.0
    assert [f["what"] for f in facts["findings"]] == [
        "the recipe takes 16 epochs: it sees every example so often with the same masks"
    ]
    assert "16.00 epochs" in report(facts)
    assert lint(index, silent, plan=plan | {"dynamic_masking": True})["findings"] == []
    assert lint(index, silent, plan=plan | {"steps": 10, "examples": 640})["findings"] == []


def test_settings_and_statistics_of_another_writer_are_not_believed(tmp_path: Path) -> None:
    odd = {
        "sequence_length": 2**61, "bin_width": -1, "dupe_factor": "x", "masked_lm_prob": [], "mask_prob": {},
        "max_predictions": None, "sequences": 7, "statistics": {"reading": [], "train": 5},
    }  # fmt: skip
    facts = lint(folder_of(tmp_path, HEALTHY, **odd), silent)
    assert facts["documents"] is None
    assert facts["splits"]["train"]["lengths"]["room"] == 24
    report(facts)


def test_what_is_recorded_by_language_is_shown(tmp_path: Path) -> None:
    by_language = {"en": {"examples": 300, "tokens": 4000}, "de": {"examples": 100, "tokens": 1500}}
    recorded = {"train": {"languages": by_language, "pairs_across_languages": 12}}
    shown = report(lint(folder_of(tmp_path, HEALTHY, statistics=recorded), silent))
    assert "languages: de (examples 100, tokens 1,500), en (examples 300, tokens 4,000)" in shown
    assert "pairs across languages: 12" in shown


def test_repeats_are_sampled_whole_beyond_what_is_kept() -> None:
    hashes = np.random.default_rng(1).integers(0, 2**63, 20_000).astype(np.uint64)
    for copies in (1, 3):
        all_, some = Repeats(), Repeats(most=5000)
        for part in np.array_split(np.tile(hashes, copies), 7):
            all_.add(part)
            some.add(part)
        exact, sample = all_.result(), some.result()
        assert exact == {
            "examined": 20_000 * copies,
            "one_in": 1,
            "share": 1 - 1 / copies,
            "most_copies": copies,
        }
        assert sample["examined"] <= 5000
        assert sample["one_in"] >= 4 * copies
        assert (sample["share"], sample["most_copies"]) == (1 - 1 / copies, copies)
    assert Repeats().result() == {"examined": 0, "one_in": 1, "share": 0.0, "most_copies": 0}


def test_masks_do_not_hide_a_repetition(tmp_path: Path) -> None:
    """The same text with other masks is a repetition; one token changed is none."""
    again = masked(replace(HEALTHY, tokens=original_tokens(HEALTHY)), (0.0, 0.5))
    both = concatenate([HEALTHY, again])
    share = lint(folder_of(tmp_path / "a", both), silent)["splits"]["train"]["repeats"]["share"]
    assert share == 0.5
    tokens = both.tokens.copy()
    free = int(both.offsets[400]) + 1
    free += int(
        free - both.offsets[400] in both.masked_positions[both.masked_offsets[400] : both.masked_offsets[401]]
    )
    tokens[free] = 5 + (tokens[free] - 4) % (SIZE - 5)
    changed = lint(folder_of(tmp_path / "b", replace(both, tokens=tokens)), silent)
    assert round(changed["splits"]["train"]["repeats"]["share"] * 800) == 399


def test_all_damaged_files_are_named(tmp_path: Path) -> None:
    index = folder_of(tmp_path, HEALTHY, random_examples(9))
    (tmp_path / "train-000001.tar").unlink()
    with pytest.raises(UserError, match=r"train-000001\.tar: missing or changed"):
        lint(index, silent)
    (tmp_path / "held_out-000000.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(
        UserError,
        match=r"3 damaged files: tokenizer\.json, train-000001\.tar, held_out-000000\.json; the first: missing",
    ):
        lint(index, silent)


def test_vocabularies_of_every_kind_name_their_pieces(tmp_path: Path) -> None:
    pieces = {"vocab": [["a", -1.5], ["b", -2.0]]}
    tokenizer = json.dumps({"model": pieces, "added_tokens": [{"id": 4, "content": "[X]"}]})
    entry = write_shard(tmp_path / "a.tar", blocks_of(HEALTHY, 16))
    index = write_index(
        tmp_path,
        splits={"train": [entry]},
        settings={},
        block_examples=16,
        vocabulary=StubVocabulary(json=tokenizer),
        statistics={},  # type: ignore[arg-type]
    )
    assert words_of(index)[:6] == ["a", "b", "<2>", "<3>", "[X]", "<5>"]
    assert words_of(folder_of(tmp_path / "other", HEALTHY))[7] == "<7>"


def test_progress_shows_only_what_takes_long() -> None:
    for wait, shown in ((0.0, True), (100.0, False)):
        console = Console(record=True, width=100, file=open("/dev/null", "w"), force_terminal=False)  # noqa: SIM115
        with console.file, late_stages(console, wait)("reading shards", 3) as advance:
            for _ in range(3):
                time.sleep(0.01)
                advance(1)
        assert ("reading shards: 3 in" in console.export_text()) == shown


def test_on_the_command_line(tiny: list[str], maskmill: Maskmill, tmp_path: Path) -> None:
    shards = setting(tiny, "data.out")
    result = maskmill("inspect", shards, "--batch", "8", "--recipe", "demo", *tiny, "train.steps=5000")
    for words in (
        "documents   ",
        "of batches of 8, tokens fill",
        "epochs",
        "hashes      all hold",
        "[CLS]",
        "█",
    ):
        assert words in result.stdout
    assert "with the same masks" in result.stdout
    assert re.search(r"what to do: .*dynamic_masking=true", result.stdout)
    facts = json.loads(maskmill("inspect", shards, "--json", "--batch", "8").stdout)
    assert facts["splits"]["train"]["padding"]["batch"] == 8
    assert "plan" not in facts
    for arguments, line in (
        (("--batch", "0"), "--batch: must be 1 example or more, got 0"),
        (("train.steps=3",), "expected --recipe RECIPE"),
        (("--examples", "all", "--split", "x"), "no split 'x'"),
        (("--examples", "²"), "a number, or all"),
    ):
        assert line in maskmill("inspect", shards, *arguments, code=2).stderr
    assert "holds no shards" in maskmill("inspect", str(tmp_path), "--recipe", "demo", code=2).stderr


@pytest.mark.parametrize(
    ("counts", "share", "line"),
    [
        (
            {"text_documents": 50, "text_tokens": 2000, "text_tokens_used": 1999, "documents_too_short": 3,
             "tokens_too_short": 3},
            0.9995,
            "text      examples use 99.95% of 2,000 tokens in 50 documents; left aside: 3 too short for an example",
        ),
        ({}, None, "text      the share of the text that examples use is not recorded"),
    ],
    ids=["counted", "older"],
)  # fmt: skip
def test_the_share_of_the_text_that_is_used_is_stated(
    tmp_path: Path, counts: dict[str, int], share: float | None, line: str
) -> None:
    facts = lint(folder_of(tmp_path / "shards", HEALTHY, statistics={"train": counts}), silent)
    assert facts["splits"]["train"]["text_share"] == share
    assert line in report(facts)
