"""What tests and benchmarks of preparation share: small settings, silence, hashes, and a corpus for plans."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from data_pipeline.records import Corpus
from data_pipeline.settings import DataSettings


@contextmanager
def silent(_name: str, _total: int) -> Iterator[Callable[[int], None]]:
    """A stage whose progress nobody hears of."""
    yield lambda _done: None


def settings_for(text: Path, out: Path, **options: object) -> DataSettings:
    small = {
        "sequences": "segment_pair",
        "sequence_length": 32,
        "max_predictions": 5,
        "shard_tokens": 1500,
        "block_examples": 8,
        "dupe_factor": 2,
    }
    values = {"sources": [f"{text}/corpus"], "vocab": f"{text}/vocabulary", "held_out": 0.2, "workers": 1}
    return DataSettings(out=str(out), **{**small, **values, **options})  # type: ignore[arg-type]


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that decides the data."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != "prepare.log.json"
    }


def corpus_of(keys: list[int], tokens: int = 10) -> Corpus:
    count = len(keys)
    return Corpus(
        tokens=np.zeros(count * tokens, np.uint16),
        sentence_starts=np.arange(count + 1) * tokens,
        document_starts=np.arange(count + 1),
        keys=np.array(keys, np.uint64),
        sources=np.zeros(count, np.uint16),
    )
