"""Text with a sentence a line in, a peer's own training files out: other people's preparation, run as it stands.

`run_peer` imports the functions of a checkout (google-research/bert or NVIDIA/LDDL, told apart by their files) and
calls them unmodified on one core. What they import and is not installed, or is no part of what is measured, gets a
stand-in that does less work than the real thing, so that it can only make the peer look faster:

- google-research/bert: `tensorflow`. Flags are plain attributes, GFile is `open`, an Example is the raw 64-bit
  integers and floats of its features one after another (no protocol buffer), a TFRecord is a length and these bytes
  (no checksum).
- LDDL: `dask` and `nltk`. The whole text is one partition, a bag is a list, `sent_tokenize` cuts at line feeds
  (sentences are given), a data frame goes to Parquet through pyarrow without pandas. Not measured: its shuffle
  between workers, its load balancing.

Importing the peer, its libraries and its vocabulary is not timed.
"""

import array
import importlib.util
import math
import random
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

GOOGLE, LDDL = "google-research/bert", "LDDL"
_MARKS = {GOOGLE: "create_pretraining_data.py", LDDL: "lddl/dask/bert/pretrain.py"}


@dataclass(frozen=True)
class Work:
    """One preparation: which text, how cut and how often."""

    text: Path  # a sentence a line, a blank line between documents
    vocabulary: Path  # BERT's vocab.txt, uncased
    length: int  # sequence length in tokens
    passes: int  # dupe_factor

    @property
    def megabytes(self) -> float:
        return self.text.stat().st_size / 1e6

    @property
    def max_predictions(self) -> int:
        """20 of 128, 77 of 512."""
        return math.ceil(0.15 * self.length)


class Timing(NamedTuple):
    """What one preparation took."""

    seconds: float
    cpu_seconds: float  # of the process and its children
    peak_mb: float = 0.0  # resident memory of the largest worker


def peer_name(checkout: Path) -> str:
    """Whose checkout this is. Raises ValueError where it is neither's."""
    for name, mark in _MARKS.items():
        if (checkout / mark).is_file():
            return name
    raise ValueError(f"{checkout}: no checkout of a peer (expected one with {' or '.join(_MARKS.values())})")


def run_peer(checkout: Path, work: Work, out: Path) -> Timing:
    """Prepares `work` into the folder `out` with the peer's functions. Stand-ins stay in this process: call it in a
    process of its own."""
    ready = {GOOGLE: _google, LDDL: _lddl}[peer_name(checkout)](checkout, work, out)
    start, busy = time.perf_counter(), time.process_time()
    ready()
    return Timing(time.perf_counter() - start, time.process_time() - busy)


def _google(checkout: Path, work: Work, out: Path) -> Callable[[], None]:
    sys.modules["tensorflow"] = _tensorflow()
    tokenization = _imported("tokenization", checkout / "tokenization.py")
    script = _imported("create_pretraining_data", checkout / _MARKS[GOOGLE])
    tokenizer = tokenization.FullTokenizer(vocab_file=str(work.vocabulary), do_lower_case=True)

    def prepare() -> None:
        instances = script.create_training_instances(
            [str(work.text)],
            tokenizer,
            work.length,
            work.passes,
            0.1,
            0.15,
            work.max_predictions,
            random.Random(12345),
        )
        script.write_instance_to_example_files(
            instances, tokenizer, work.length, work.max_predictions, [str(out / "examples.tfrecord")]
        )

    return prepare


def _tensorflow() -> ModuleType:
    flags = SimpleNamespace(FLAGS=SimpleNamespace())
    for kind in ("string", "bool", "integer", "float"):
        setattr(flags, f"DEFINE_{kind}", lambda name, default, _help: setattr(flags.FLAGS, name, default))
    train = SimpleNamespace(
        Int64List=_Values,
        FloatList=_Values,
        Feature=_Feature,
        Features=lambda feature: feature,
        Example=_Example,
    )
    return _module(
        "tensorflow",
        flags=flags,
        gfile=SimpleNamespace(GFile=lambda path, mode: open(path, mode, encoding="utf-8")),
        logging=SimpleNamespace(info=lambda *_: None),
        python_io=SimpleNamespace(TFRecordWriter=_RecordWriter),
        train=train,
    )


class _Values(NamedTuple):
    value: list[Any] = []  # noqa: RUF012 (nothing writes into it)


class _Feature(NamedTuple):
    int64_list: _Values = _Values()
    float_list: _Values = _Values()


class _Example:
    def __init__(self, features: dict[str, _Feature]) -> None:
        self._features = features

    def SerializeToString(self) -> bytes:
        return b"".join(
            array.array("q", f.int64_list.value).tobytes() + array.array("f", f.float_list.value).tobytes()
            for f in self._features.values()
        )


class _RecordWriter:
    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115

    def write(self, record: bytes) -> None:
        self._file.write(struct.pack("<Q", len(record)))
        self._file.write(record)

    def close(self) -> None:
        self._file.close()


def _lddl(checkout: Path, work: Work, out: Path) -> Callable[[], None]:
    import transformers

    bag = _module("dask.bag", concat=lambda bags: bags[0])
    _module("dask", bag=bag, distributed=_module("dask.distributed"))
    _module("nltk", tokenize=SimpleNamespace(sent_tokenize=str.splitlines))
    _module("lddl", __path__=[str(checkout / "lddl")])
    _module("lddl.download.utils", parse_str_of_num_bytes=None)
    nothing = dict.fromkeys(("to_textfiles_binned", "to_dataframe_binned", "to_parquet_binned"))
    _module("lddl.dask.bert.binning", **nothing)
    script = importlib.import_module("lddl.dask.bert.pretrain")
    script.read_books = lambda path, **_: _Bag(_documents(path))
    script._shuffle_bag_texts = lambda texts: texts.shuffled()
    tokenizer = transformers.BertTokenizerFast(str(work.vocabulary))

    def prepare() -> None:
        pairs = script._get_pairs(
            books_path=work.text,
            target_seq_length=work.length,
            duplicate_factor=work.passes,
            tokenizer=tokenizer,
            masking=True,
        )
        script._save(pairs, str(out), target_seq_length=work.length, masking=True)

    return prepare


def _documents(path: Path) -> Iterator[str]:
    """LDDL's form of a document: its id, white space, its text."""
    for number, text in enumerate(path.read_text(encoding="utf-8").split("\n\n")):
        if text.strip():
            yield f"{number} {text.strip()}"


class _Bag:
    """What LDDL uses of a dask.bag.Bag and of the data frame that it becomes: one partition, done at once."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def map(self, function: Callable[[Any], Any]) -> "_Bag":
        return _Bag(map(function, self._items))

    def filter(self, function: Callable[[Any], Any]) -> "_Bag":
        return _Bag(filter(function, self._items))

    def map_partitions(self, function: Callable[[Iterable[Any]], Iterable[Any]]) -> "_Bag":
        return _Bag(function(self._items))

    def shuffled(self) -> "_Bag":
        items = list(self._items)
        random.shuffle(items)
        return _Bag(items)

    def to_dataframe(self, meta: dict[str, type]) -> "_Bag":
        return self

    def to_parquet(self, path: str, engine: str, write_index: bool, schema: dict[str, Any]) -> None:
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist(list(self._items), pyarrow.schema(list(schema.items())))
        pyarrow.parquet.write_table(table, Path(path) / "part.0.parquet")


def _module(name: str, **content: Any) -> ModuleType:
    """Puts a module with this content in place of the one of that name."""
    sys.modules[name] = module = ModuleType(name)
    module.__dict__.update(content)
    return module


def _imported(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
