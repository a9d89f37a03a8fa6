"""One preparation of ours in, the seconds that it took out: as a whole, stage by stage, and word by word.

Each function is meant for a process of its own (bench_prepare.py starts one for each measurement).
"""

import resource
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any

from data_pipeline import prepare, rng
from data_pipeline.masking.masker import Masker
from data_pipeline.records import Examples, Sentences
from data_pipeline.sequences.registry import load
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.read import discover, read
from data_pipeline.stages import executors, tasks
from data_pipeline.tokenize.sentences import split
from data_pipeline.tokenize.tokenize import WordCache
from data_pipeline.vocabulary.files import load_vocabulary
from tests.benchmarks.peers import Timing, Work
from tests.factories.preparations import silent

SEQUENCES = "segment_pair"
_SENTENCES = 1024


def cut_into_sentences(
    source: str, files: dict[Path, int], document_sentences: int, paragraph_bytes: int
) -> list[str]:
    """Writes the source's documents, a sentence a line and a blank line after each, into every file up to so many
    bytes (the last document is cut there). Returns the first paragraphs as they were, `paragraph_bytes` of them."""
    settings, counts = DataSettings(sources=[source]), Counts()
    paragraphs: list[str] = []
    most, written = max(files.values()), 0
    lines: list[str] = []
    for document in (d for unit in discover(settings) for d in read(unit, settings, counts)):
        if sum(map(len, paragraphs)) < paragraph_bytes:
            paragraphs += [p.replace("\n", " ") for p in document.text.split("\n\n") if p.strip()]
        sentences = list(split(document, settings, counts).sentences)
        each = document_sentences or len(sentences)
        for first in range(0, len(sentences), each):
            lines += [*sentences[first : first + each], ""]
        written = counts.bytes
        if written >= most:
            break
    data = "\n".join([*lines, ""]).encode("utf-8")
    for file, size in files.items():
        end = len(data) if size >= len(data) else data.rindex(b"\n", 0, size) + 1
        file.write_bytes(data[:end])
    return paragraphs


def settings_of(work: Work, out: Path, workers: int) -> DataSettings:
    """What a user would write for this work."""
    return DataSettings(
        sources=[str(work.text)],
        out=str(out),
        vocab=str(work.vocabulary),
        sentences="lines",
        sequences=SEQUENCES,
        sequence_length=work.length,
        dupe_factor=work.passes,
        max_predictions=work.max_predictions,
        workers=workers,
    )


def prepare_whole(work: Work, folder: Path, workers: int) -> Timing:
    """`maskmill prepare` of this work, from start to index; the shards are removed again."""
    out = folder / "shards"
    start, busy = time.perf_counter(), _cpu_seconds()
    prepare.prepare(settings_of(work, out, workers), silent)
    timing = Timing(time.perf_counter() - start, _cpu_seconds() - busy, _peak_mb())
    shutil.rmtree(out)
    return timing


def stage_seconds(work: Work, small: Path, folder: Path) -> dict[str, float]:
    """CPU seconds of each stage, all run in this process: what a stage calls and is listed itself is not counted
    twice, and `the rest` is what none of them took."""
    executors.ProcessPoolExecutor = _Inline  # type: ignore[misc,assignment]
    warm = Work(small, work.vocabulary, work.length, work.passes)
    prepare_whole(warm, folder, 1)  # loads compiled code
    clock = _Clock()
    clock.watch("reading", tasks, "read")
    clock.watch("given sentences", tasks, "split")
    clock.watch("tokenization", tasks, "tokenize")
    clock.watch("gathering", tasks, "save_sorted", "plan_pools", "locate", "merge")
    clock.watch("pairs", load(SEQUENCES), "pieces")
    clock.watch("masks", Masker, "__call__")
    clock.watch("shuffling", tasks, "concatenate")
    clock.watch("shuffling", rng, "permutation")
    clock.watch("shuffling", Examples, "take")
    clock.watch("writing shards", tasks, "write_shard")
    clock.watch("statistics", tasks, "shard_statistics", "language_statistics")
    with clock.stage("the rest"):
        prepare_whole(work, folder, 1)
    return dict(clock.seconds)


def word_cache_seconds(work: Work, sample: Path) -> tuple[float, float, float]:
    """CPU seconds of tokenizing the work's sentences with a cold and with a warm cache, and of the tokenizers
    library by itself on a sample."""
    vocabulary = load_vocabulary(str(work.vocabulary))
    small = sample.read_text(encoding="utf-8").splitlines()
    WordCache(vocabulary).encode(small[:100])  # loads compiled code
    sentences = work.text.read_text(encoding="utf-8").splitlines()
    cache = WordCache(vocabulary)
    cold, warm = (_taken(lambda: cache.encode(sentences)) for _ in range(2))
    library = _taken(lambda: vocabulary.tokenizer.encode_batch_fast(small, add_special_tokens=False))
    return cold, warm, library


class _Clock:
    """CPU seconds by name; of calls within calls, each counts its own time only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._within = [0.0]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.process_time()
        self._within.append(0.0)
        try:
            yield
        finally:
            whole = time.process_time() - start
            self.seconds[name] += whole - self._within.pop()
            self._within[-1] += whole

    def watch(self, name: str, owner: Any, *functions: str) -> None:
        """Puts functions or methods that count as `name` in the place of `owner`'s."""
        self.seconds[name] += 0.0
        for function in functions:
            setattr(owner, function, self._timed(name, getattr(owner, function)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.stage(name):
                result = function(*arguments, **named)
            if isinstance(result, Sentences) and isinstance(result.sentences, Iterator):
                return result._replace(sentences=self._items(name, result.sentences, _SENTENCES))
            return self._items(name, result, 1) if isinstance(result, Iterator) else result

        return timed

    def _items(self, name: str, items: Iterator[Any], together: int) -> Iterator[Any]:
        """The items, so many asked for at a time: looking at the clock for each sentence would take longer than it."""
        while True:
            with self.stage(name):
                some = list(islice(items, together))
            if not some:
                return
            yield from some


class _Inline(Executor):
    """Does a task at once, in this process."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments, **named))
        return future


def _taken(action: Callable[[], Any]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _peak_mb() -> float:
    """Resident memory of the largest worker."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
