"""The exact mode against what google-research/bert's create_pretraining_data.py wrote: every field, in order."""

import json
from pathlib import Path

import pytest

from data_pipeline.settings import DataSettings
from data_pipeline.sources.read import discover
from data_pipeline.stages.google_bert import exact_examples, read_corpus
from data_pipeline.vocabulary.files import load_vocabulary
from tests.command_line import VOCABULARY

HERE = Path(__file__).parent


def rows_of(path):
    with open(path, encoding="utf-8") as lines:  # str.splitlines would also cut at U+2028
        return [json.loads(line) for line in lines]


def golden(name):
    """The settings in the file's first line, as ours, and the instances in its other lines."""
    head, *instances = rows_of(HERE / "pairs" / name)
    settings = DataSettings(
        sources=[str(HERE / "pairs" / "sample_text.txt")],
        mode="exact",
        seed=head["random_seed"],
        sequence_length=head["max_seq_length"],
        dupe_factor=head["dupe_factor"],
        short_seq_prob=head["short_seq_prob"],
        masked_lm_prob=head["masked_lm_prob"],
        max_predictions=head["max_predictions_per_seq"],
        whole_word=head["do_whole_word_mask"],
    )
    assert len(instances) == head["instances"]
    return settings, instances


def as_instances(examples):
    """Examples with the names and forms of the golden files."""
    for n in range(len(examples)):
        tokens = examples.tokens[examples.offsets[n] : examples.offsets[n + 1]].tolist()
        masked = slice(examples.masked_offsets[n], examples.masked_offsets[n + 1])
        yield {
            "input_ids": tokens,
            "segment_ids": [int(place >= examples.first_lengths[n]) for place in range(len(tokens))],
            "is_random_next": {0: False, 1: True}[int(examples.labels[n])],
            "masked_lm_positions": examples.masked_positions[masked].tolist(),
            "masked_lm_ids": examples.masked_ids[masked].tolist(),
        }


@pytest.mark.parametrize("name", ["sample_text.seq128.jsonl", "sample_text.seq512.wwm.jsonl"])
@pytest.mark.parametrize("block_examples", [512, 7])
def test_the_scripts_instances_id_for_id_and_in_order(name, block_examples, tmp_path):
    settings, expected = golden(name)
    settings.block_examples = block_examples
    blocks = list(exact_examples(discover(settings), load_vocabulary(str(VOCABULARY)), settings, tmp_path))
    assert [len(b) for b in blocks[:-1]] == [block_examples] * (len(blocks) - 1)
    made = [instance for block in blocks for instance in as_instances(block)]
    assert len(made) == len(expected)
    for number, (ours, theirs) in enumerate(zip(made, expected, strict=True)):
        assert ours == theirs, f"instance {number}"


def test_another_seed_gives_other_instances(tmp_path):
    settings, expected = golden("sample_text.seq128.jsonl")
    settings.seed += 1
    blocks = exact_examples(discover(settings), load_vocabulary(str(VOCABULARY)), settings, tmp_path)
    assert [i for b in blocks for i in as_instances(b)] != expected


def test_words_are_the_scripts_also_where_the_library_differs(tmp_path):
    """Python's own tokenizer made these ids; it differs from the script for words of 101 to 200 characters."""
    lines = rows_of(HERE / "wordpiece" / "uncased.jsonl")
    lines = [
        line for line in lines if line["ids"] and "\n" not in line["text"] and "x" * 101 not in line["text"]
    ]
    assert sum(not line["rust_same"] for line in lines) >= 2
    (tmp_path / "lines.txt").write_text("\n\n".join(line["text"] for line in lines), newline="")
    files = discover(DataSettings(sources=[str(tmp_path / "lines.txt")]))
    text = read_corpus(files, load_vocabulary(str(VOCABULARY)), tmp_path)
    assert len(text) == len(lines)
    for line, first, last in zip(lines, text.document_starts[:-1], text.document_starts[1:], strict=True):
        ids = text.tokens[text.sentence_starts[first] : text.sentence_starts[last]].tolist()
        assert ids == line["ids"], line["text"]
