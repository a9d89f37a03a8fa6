"""Which documents are held out: by their keys alone, and in a small corpus as many as its evaluation needs."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline import rng
from data_pipeline.errors import UserError
from data_pipeline.prepare import prepare
from data_pipeline.records import Corpus
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.shards.index import HELD_OUT, TRAIN
from data_pipeline.shards.lint import lint
from data_pipeline.shards.statistics import FEW_HELD_OUT, held_out_note
from data_pipeline.stages import corpus as document_pools
from data_pipeline.stages.corpus import DocumentPool, members, parsed_pools, plan_pools, pools_json
from data_pipeline.vocabulary.train import learn_vocabulary
from tests.command_line import Maskmill, write_text
from tests.factories.preparations import corpus_of, hashes, settings_for, silent

pytestmark = pytest.mark.usefixtures("worker_here")

PAIRS = ("segment_pair", "sentence_pair")
OTHERS = ("two_segments", "sentence_order", "doc_sentences", "full_sentences")
FRACTIONS = (1e-9, 0.03, 0.2, 0.3, 0.4)


def drawn(keys: list[int], settings: DataSettings) -> np.ndarray:
    return rng.first_words(settings.seed, np.array(keys, np.uint64), rng.HELD_OUT)


def held_out(pools: list[DocumentPool], parts: list[Corpus], settings: DataSettings) -> list[int]:
    """The keys of the held-out documents, as gathering finds them."""
    found = [p.keys[members(p, pool, settings)] for p in parts for pool in pools if pool.split == HELD_OUT]
    return sorted(np.concatenate(found).tolist())


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("sequences", [*PAIRS, *OTHERS])
def test_a_small_corpus_holds_out_what_its_pairs_need(sequences: str, fraction: float) -> None:
    """The documents with the smallest draws, in any division into parts; two if pairs need them, else one."""
    needed = 2 if sequences in PAIRS else 1
    for first in range(0, 400, 13):
        keys = list(range(first, first + 13))
        settings = DataSettings(sources=["a"], sequences=sequences, held_out=fraction)
        draws = drawn(keys, settings)
        expected = max(int((draws < fraction * 2.0**64).sum()), needed)
        if len(keys) - expected < needed:
            continue
        smallest = sorted(np.array(keys)[np.argsort(draws)[:expected]].tolist())
        for parts in ([corpus_of(keys)], [corpus_of(keys[:5]), corpus_of(keys[5:])]):
            pools = parsed_pools(pools_json(plan_pools(parts, settings)))
            assert held_out(pools, parts, settings) == smallest
            train = [len(members(p, pool, settings)) for p in parts for pool in pools if pool.split == TRAIN]
            assert sum(train) == 13 - expected


@pytest.mark.parametrize("sequences", [*PAIRS, *OTHERS])
def test_a_corpus_that_holds_out_enough_is_planned_as_before(
    sequences: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DataSettings(sources=["a"], sequences=sequences, held_out=0.3)
    enough = [
        keys
        for keys in (list(range(n, n + 20)) for n in range(0, 200, 20))
        if (drawn(keys, settings) < 0.3 * 2.0**64).sum() >= 2
    ]
    assert len(enough) > 5
    plans = [pools_json(plan_pools([corpus_of(keys)], settings)) for keys in enough]
    assert all(pool.held_out_limit == 0 for plan in plans for pool in parsed_pools(plan))
    monkeypatch.setattr(document_pools, "_raised_limit", lambda *_: 0)
    assert [pools_json(plan_pools([corpus_of(keys)], settings)) for keys in enough] == plans


def test_a_plan_of_an_earlier_version_is_read() -> None:
    settings = DataSettings(sources=["a"], held_out=0.3)
    pools = plan_pools([corpus_of(list(range(100)))], settings)
    old = pools_json(pools).replace(b'"held_out_limit":0,', b"")
    assert b"limit" not in old
    assert parsed_pools(old) == pools


@pytest.mark.parametrize("sequences", [*PAIRS, *OTHERS])
@pytest.mark.parametrize("documents", [1, 2, 3])
def test_too_small_a_corpus_is_refused(sequences: str, documents: int) -> None:
    settings = DataSettings(sources=["a"], sequences=sequences, held_out=1e-9)
    least = 4 if sequences in PAIRS else 2
    corpus = corpus_of(list(range(documents)))
    if documents >= least:
        assert len(held_out(plan_pools([corpus], settings), [corpus], settings)) == 1
        return
    with pytest.raises(UserError, match=f"sets aside 0 of {documents} documents"):
        plan_pools([corpus], settings)


def test_two_of_one_language_are_held_out_where_pairs_stay_in_it() -> None:
    """And a language of which one alone would be keeps it for training."""
    settings = DataSettings(
        sources=["a", "b"], languages=["en", "fr"], sequences="segment_pair", across_languages=False
    )
    for first in range(0, 400, 20):
        keys = list(range(first, first + 20))
        for fraction in FRACTIONS:
            settings.held_out = fraction
            corpus = corpus_of(keys)
            sources = np.array([key % 2 for key in keys], np.uint16)
            parts = [
                Corpus(corpus.tokens, corpus.sentence_starts, corpus.document_starts, corpus.keys, sources)
            ]
            pools = plan_pools(parts, settings)
            counts = np.bincount(np.array(held_out(pools, parts, settings)) % 2, minlength=2)
            assert counts.max() >= 2
            assert 1 not in counts


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "corpus").mkdir()
    for number in range(13):
        write_text(folder / "corpus" / f"{number:02d}.txt", documents=3, seed=number)
    settings = settings_for(folder, folder, documents="file")
    learn_vocabulary(settings, VocabularySettings(size=300), silent)
    return folder


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_thirteen_documents_are_prepared_alike_by_any_workers(
    text: Path, tmp_path: Path, fraction: float
) -> None:
    options = {"documents": "file", "held_out": fraction, "sequences": "segment_pair"}
    kept = {"tokens": f"{tmp_path}/tokens"}  # shared with a preparation that needs one document only
    prepare(settings_for(text, tmp_path / "other", **options | kept | {"sequences": "doc_sentences"}), silent)
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        index, _ = prepare(
            settings_for(text, out, workers=workers, **options, **(kept if workers == 2 else {})), silent
        )
        statistics = index.statistics
        assert statistics["held_out"]["documents"] >= 2
        assert statistics["held_out"]["documents"] + statistics["train"]["documents"] == 13
        finding = held_out_note(statistics)
        assert finding.startswith(
            f"{statistics['held_out']['documents']} documents are held out, fewer than 20"
        )
        assert [f["what"] for f in lint(index, silent)["findings"] if "held out" in f["what"]] == [finding]
    assert hashes(tmp_path / "out1") == hashes(tmp_path / "out2")


@pytest.mark.parametrize("count", [1, 2, FEW_HELD_OUT - 1, FEW_HELD_OUT, 500])
def test_few_held_out_documents_are_warned_of(count: int) -> None:
    said = held_out_note({"held_out": {"documents": count}})
    assert bool(said) == (count < 20)
    assert not said or said.startswith(f"{count} document")


@pytest.mark.parametrize(
    "statistics", [{}, {"held_out": 5}, {"held_out": {}}, {"held_out": {"documents": "1"}}]
)
def test_shards_that_do_not_say_are_not_warned_of(statistics: dict) -> None:
    assert held_out_note(statistics) == ""


def test_prepare_says_so(text: Path, tmp_path: Path, maskmill: Maskmill) -> None:
    own = [f"data.sources=[{text}/corpus]", f"data.vocab={text}/vocabulary", "data.workers=1"]
    own += ["data.duplicates=keep", "data.documents=file", f"data.out={tmp_path}/shards"]
    for _ in ("made", "there already"):
        said = maskmill("prepare", "demo", *own, "data.held_out=0.01").stdout
        assert (
            "warning: 2 documents are held out, fewer than 20" in said
            or "warning: 1 document is held" in said
        )
    assert (
        "held out"
        not in maskmill("prepare", "demo", *own[:-1], f"data.out={tmp_path}/all", "data.held_out=0").stdout
    )
