"""Documents of any length in little memory: passages, sentences and tokens go on while the rest is still on disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipeline.records import Sentences
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.read import discover, read
from data_pipeline.stages.corpus import open_corpus
from data_pipeline.stages.tasks import read_source
from data_pipeline.tokenize.tokenize import WordCache, tokenize
from data_pipeline.vocabulary.files import load_vocabulary
from data_pipeline.vocabulary.train import learn_vocabulary
from tests.command_line import ROOT, write_text

MEGABYTES = 40
PEAK = """
import sys
from data_pipeline.settings import DataSettings
from data_pipeline.sources.read import discover
from data_pipeline.stages.tasks import read_source
source, vocabulary, out = sys.argv[1:]
settings = DataSettings(sources=[source])
counts = [read_source(u, settings, vocabulary, f"{out}/{n}") for n, u in enumerate(discover(settings))]
[peak] = [int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(peak, sum(c["documents"] for c in counts),
      sum(c["counts"]["bytes"] for c in counts))
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A megabyte of text without blank lines and, beyond the BMP so that a str takes four bytes a character, one
    emoji; and a vocabulary."""
    folder = tmp_path_factory.mktemp("long")
    write_text(folder / "a.txt", documents=2600)
    learn_vocabulary(
        DataSettings(sources=[f"{folder}/a.txt"], vocab=f"{folder}/vocabulary"),
        VocabularySettings(size=300),
        lambda _name, _total: _Silent(),
    )
    once = (folder / "a.txt").read_text().replace("\n\n", "\n")[: 10**6]
    (folder / "a.txt").write_text("\U0001f600 " + once)
    # a first run compiles, which takes memory, and keeps the code on disk
    subprocess.run([*_peak(folder, folder / "a.txt"), str(folder / "warm")], cwd=ROOT, check=True)
    return folder


def _peak(text: Path, source: Path) -> list[str]:
    return [sys.executable, "-c", PEAK, str(source), f"{text}/vocabulary"]


class _Silent:
    def __enter__(self):  # type: ignore[no-untyped-def]
        return lambda _n: None

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "kind", ["document", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("line", "json"))]
)
def test_a_long_document_keeps_the_memory_of_a_worker_small(text: Path, tmp_path: Path, kind: str) -> None:
    once = (text / "a.txt").read_text()
    path = tmp_path / ("a.jsonl" if kind == "json" else "a.txt")
    once = once.replace("\n", " ") if kind == "line" else json.dumps(once)[1:-1] if kind == "json" else once
    with path.open("w") as file:
        file.write('{"text": "' if kind == "json" else "")
        for _ in range(MEGABYTES):
            file.write(once)
        file.write('"}' if kind == "json" else "")
    done = subprocess.run(
        [*_peak(text, path), str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    peak, documents, size = map(int, done.stdout.split())
    assert documents == 1
    assert size > MEGABYTES * 990_000
    assert peak < 350, "MiB; as one str the document alone would take 160, and each copy as much again"


def test_tokens_on_disk_are_the_tokens_in_memory(text: Path, tmp_path: Path) -> None:
    cache = WordCache(load_vocabulary(f"{text}/vocabulary"))
    lines = (text / "a.txt").read_text().splitlines()

    def documents():  # type: ignore[no-untyped-def]
        yield Sentences("long", iter([*lines, "\u200b"]))
        for number, line in enumerate(lines):
            yield Sentences(str(number), [line, " "])
        yield Sentences("empty", [])

    counts, again = Counts(), Counts()
    memory = tokenize(documents(), cache, counts)
    disk = tokenize(documents(), cache, again, tmp_path / "spool")
    assert counts == again
    assert counts.documents_without_tokens == 1
    assert len(memory) == len(lines) + 1
    for column in ("tokens", "sentence_starts", "document_starts", "keys", "sources"):
        assert getattr(memory, column).tolist() == getattr(disk, column).tolist()
    assert memory.document_starts[1] == len(lines)
    assert (tmp_path / "spool").stat().st_size == disk.tokens.nbytes


def test_a_task_leaves_no_temporary_file(text: Path, tmp_path: Path) -> None:
    settings = DataSettings(sources=[f"{text}/a.txt"])
    [part] = discover(settings)
    result = read_source(part, settings, f"{text}/vocabulary", str(tmp_path / "out"))
    corpus = open_corpus(tmp_path / "out")
    assert result["tokens"] == len(corpus.tokens) == result["counts"]["tokens"]
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {".npy"}


def test_the_unread_rest_of_a_document_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first line\n" * 400_000 + "\nsecond")
    settings = DataSettings(sources=[str(tmp_path)])
    [part] = discover(settings)
    counts = Counts()
    first, second = (document.text for document in read(part, settings, counts))
    assert len(first) < 3_000_000
    assert second == "second"
    assert counts.bytes == 11 * 400_000 + 6


def test_passages_end_at_white_space(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "wörter " * 1_000_000}))
    settings = DataSettings(sources=[str(tmp_path)])
    [document] = ([list(d.passages)] for d in read(discover(settings)[0], settings, Counts()))
    passages = document[0]
    assert len(passages) > 4
    assert all(passage.endswith(" ") for passage in passages if passage)
    assert max(map(len, passages)) < 3_000_000
