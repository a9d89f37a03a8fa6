"""Settings of the mill, in two groups: those that decide the bytes of the shards, and those that do not."""

from dataclasses import dataclass, field, fields
from typing import Any


def deciding(default: Any = None, *, factory: Any = None) -> Any:
    """A field that decides bytes: it is part of the data's identity and written to index.json."""
    kind = {"default_factory": factory} if factory else {"default": default}
    return field(metadata={"decides_bytes": True}, **kind)


@dataclass
class VocabularySettings:
    """How `maskmill vocab` trains a WordPiece vocabulary."""

    size: int = 30522
    """Entries, the five special tokens included."""
    lowercase: bool = True
    """Lower-case the text and strip accents, as BERT's uncased models do."""
    min_frequency: int = 2
    """A pair of pieces seen less often than this is not merged."""
    sample_mb: int = 200
    """Megabytes of text to learn from: whole documents, in the order of the sources, until this much is read."""


@dataclass
class DataSettings:
    """Where text comes from and what shards are made of it."""

    sources: list[str] = field(default_factory=list)
    """Files, folders, globs or fsspec URIs: .txt, .jsonl (.json), .parquet, each also .gz and .zst."""
    out: str = ""
    """Folder for the shards and index.json."""
    vocab: str = ""
    """A tokenizer.json, a vocab.txt, or a folder that holds one; `maskmill vocab` writes a folder here."""
    text_field: str = deciding("text")
    """JSON lines and Parquet: the field that holds the text."""
    id_field: str = deciding("")
    """JSON lines and Parquet: the field that names a record; empty: its number in the file."""
    documents: str = deciding("blank_line")
    """Plain text: `blank_line` parts documents at blank lines, `file` makes one document of a file."""
    sentences: str = deciding("split")
    """`split` finds sentences in running text; `lines` takes each line as one sentence."""
    seed: int = deciding(12345)
    """Seed of every random draw in the shards."""
    sequence_length: int = deciding(128)
    """Longest example in tokens, [CLS] and [SEP] included."""
    dupe_factor: int = deciding(1)
    """Passes over the text, each with other pairs and other masks."""
    short_seq_prob: float = deciding(0.1)
    """Share of documents (per pass) cut to a random shorter target length."""
    masked_lm_prob: float = deciding(0.15)
    """Share of an example's tokens to predict."""
    max_predictions: int = deciding(20)
    """Most tokens to predict in one example."""
    whole_word: bool = deciding(False)
    """Mask all pieces of a word together, or none of them."""
    mode: str = deciding("fast")
    """`fast` scales to any corpus; `exact` repeats google-research/bert's script draw for draw, in one process."""
    held_out: float = deciding(0.0)
    """Share of documents set aside for evaluation; 0 in exact mode."""
    min_donors: int = deciding(10_000)
    """Documents that a random next segment is drawn from, at least; a smaller corpus is one pool."""
    across_languages: bool = deciding(True)
    """A random next segment may be of another language."""
    shard_tokens: int = deciding(4_000_000)
    """Tokens of text (over all passes) that make one shard, about; a document is never cut in two."""
    block_examples: int = deciding(512)
    """Examples in one block, the unit that is read and checked."""
    streams: int = 0
    """Parallel reading positions in the shards; 0: the largest divisor of the global batch up to 256."""
    workers: int = 0
    """Processes that prepare data; 0: one a core."""
    executor: str = "local"
    """Where the workers run: `local` processes."""
    verify: str = "blocks"
    """What training checks: `blocks` at every read, or `full`, all shard hashes at the start as well."""


def deciding_values(settings: DataSettings) -> dict[str, Any]:
    """The settings that decide bytes, by name, in their order of declaration."""
    return {f.name: getattr(settings, f.name) for f in fields(settings) if f.metadata.get("decides_bytes")}
