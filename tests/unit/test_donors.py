"""Who may be the random next segment: hash partitions against the whole corpus, languages apart, and documents passed
over as often as their source asks, from the plan to the shard."""

from dataclasses import replace

import numpy as np
import pytest
from pair_material import corpus, random_corpus, rows, surprise, vocabulary

from data_pipeline.corpus import open_corpus, save_corpus
from data_pipeline.draws import text_key
from data_pipeline.errors import UserError
from data_pipeline.index import HELD_OUT, TRAIN
from data_pipeline.plan import Unit, is_held_out, members, parsed_plan, plan, plan_json
from data_pipeline.recipes import RECIPES, recipe_of
from data_pipeline.sampling import document_passes, repeats
from data_pipeline.settings import DataSettings
from data_pipeline.stages import gather_partition, write_unit
from data_pipeline.statistics import add_up

TOPICS = 8


def hashed(text, sources=None):
    """`text` with keys that are hashes, as the mill gives them, in their order, and where each document was before."""
    keys = np.array([text_key(f"books.jsonl:{n}") for n in range(len(text))], np.uint64)
    placed = replace(
        text, keys=keys, sources=text.sources if sources is None else np.asarray(sources, np.uint16)
    )
    order = np.argsort(keys, kind="stable")
    return taken(placed, order), order


def settings(**options):
    small = {"sequences": "segment_pair", "sequence_length": 48, "max_predictions": 5, "block_examples": 8}
    return DataSettings(**{**small, **options})


def pairs_of(text, options, passes=None):
    """(document of A, document of B) of the random pairs of one partition of `text`, by its places."""
    recipe = recipe_of(options, vocabulary(int(text.tokens.max()) + 1))
    each = options.dupe_factor if passes is None else passes
    segments = recipe.segments(text, 0, len(text), options.seed, each)
    first_place = text.tokens[text.sentence_starts[text.document_starts[:-1]]].astype(np.int64)
    order = np.argsort(first_place)
    found = []
    for sequence, first, label in zip(
        rows(segments.tokens.astype(np.int64), segments.offsets),
        segments.first_lengths,
        segments.labels,
        strict=True,
    ):
        if label == 1:
            places = np.searchsorted(first_place[order], [sequence[1], sequence[first]], "right") - 1
            found.append(order[places])
    return np.array(found)


def taken(text, chosen):
    """The documents `chosen` of `text`, each token as it was."""
    lengths = np.diff(text.sentence_starts)
    sentences = [np.arange(text.document_starts[d], text.document_starts[d + 1]) for d in chosen]
    counts, flat = [len(s) for s in sentences], np.concatenate(sentences)
    places = [np.arange(text.sentence_starts[s], text.sentence_starts[s + 1]) for s in flat]
    part = corpus(counts, lengths[flat], tokens=text.tokens[np.concatenate(places)])
    return replace(part, keys=text.keys[chosen], sources=text.sources[chosen])


# -- partitions of hashes against the whole corpus ----------------------------------------------


def table_of(text, topics, borders, options):
    """Random pairs by (topic of A, topic of B), each part of the documents a pool of donors of its own."""
    counts = np.zeros((TOPICS, TOPICS))
    for chosen in np.split(np.arange(len(text)), borders):
        own = topics[chosen]
        for a, b in pairs_of(taken(text, chosen), options):
            counts[own[a], own[b]] += 1
    return counts


def expected_table(topics, counts):
    """What drawing from all other documents of the corpus would give, the topics of A as they are."""
    size = np.bincount(topics, minlength=TOPICS)
    others = size[None, :] - np.eye(TOPICS)
    return counts.sum(1, keepdims=True) * others / others.sum(1, keepdims=True)


def test_donors_of_hash_partitions_are_those_of_global_drawing(monkeypatch):
    monkeypatch.setattr("data_pipeline.plan.PARTITION_TOKENS", 30_000)
    documents, options = 6000, settings(min_donors=1000, dupe_factor=2)
    before = np.arange(documents) * TOPICS // documents  # as sources are: topics one after another
    text, order = hashed(random_corpus(documents, mean_sentences=4))
    partitions = plan([text], options)
    assert len(partitions) == 6
    borders = np.cumsum([len(members(text, p, options)) for p in partitions])[:-1]
    topics = before[order]
    counts = table_of(text, topics, borders, options)
    assert counts.sum() > 10_000
    assert abs(surprise(counts.ravel(), expected_table(topics, counts).ravel())) < 3.5
    whole = table_of(text, topics, [], options)
    assert abs(surprise(whole.ravel(), expected_table(topics, whole).ravel())) < 3.5
    # the same partitions of documents in the order of their sources
    unhashed = random_corpus(documents, mean_sentences=4)
    wrong = table_of(unhashed, before, borders, options)
    assert surprise(wrong.ravel(), expected_table(before, wrong).ravel()) > 20


# -- languages apart ----------------------------------------------------------------------------

LANGUAGES = ["en", "fi", "en", "sv"]


@pytest.fixture
def mixed():
    """900 documents of four sources, three languages; the third source is small."""
    sources = np.random.default_rng(3).choice(4, 900, p=[0.5, 0.25, 0.05, 0.2])
    return hashed(random_corpus(900), sources)[0]


def prepared(text, folder, options):
    """The statistics of each split, by the very stages of a preparation."""
    words = vocabulary(int(text.tokens.max()) + 1)
    recipe = recipe_of(options, words)
    half = len(text) // 2
    parts = []
    for n, chosen in enumerate((np.arange(half), np.arange(half, len(text)))):
        (folder / f"part{n}").mkdir(parents=True)
        save_corpus(taken(text, chosen), folder / f"part{n}")
        parts.append(str(folder / f"part{n}"))
    statistics, number = {TRAIN: [], HELD_OUT: []}, 0
    for n, partition in enumerate(plan([open_corpus(folder / f"part{n}") for n in range(2)], options)):
        gather_partition(parts, options, partition, str(folder / f"pool{n}"))
        for unit in partition.units:
            shard = str(folder / f"{number}.tar")
            made = write_unit(str(folder / f"pool{n}"), unit, recipe, options, number, shard)
            statistics[partition.split].append(made["statistics"])
            number += 1
    return {split: add_up(parts) for split, parts in statistics.items()}


def multilingual(**options):
    sources = [f"{n}.txt" for n in range(4)]
    return settings(sources=sources, languages=LANGUAGES, shard_tokens=3000, **options)


def test_a_random_next_is_of_the_same_language_where_that_is_asked(mixed, tmp_path):
    apart = prepared(mixed, tmp_path / "apart", multilingual(across_languages=False, held_out=0.3))
    across = prepared(mixed, tmp_path / "across", multilingual(across_languages=True, held_out=0.3))
    for split in (TRAIN, HELD_OUT):
        assert apart[split]["pairs_random"] > 100
        assert apart[split]["pairs_across_languages"] == 0
        shares = np.array([t["examples"] for t in across[split]["languages"].values()])
        shares = shares / shares.sum()
        expected = 1 - (shares**2).sum()
        found = across[split]["pairs_across_languages"] / across[split]["pairs_random"]
        assert found == pytest.approx(expected, abs=0.06), "1 - sum of squared shares"
        for name in ("en", "fi", "sv"):
            assert apart[split]["languages"][name]["examples"] > 0
    assert sum(t["examples"] for t in apart[TRAIN]["languages"].values()) == apart[TRAIN]["examples"]
    assert sum(t["tokens"] for t in apart[TRAIN]["languages"].values()) == apart[TRAIN]["tokens"]


def test_partitions_of_a_language_hold_all_its_documents_once(mixed, monkeypatch):
    monkeypatch.setattr("data_pipeline.plan.PARTITION_TOKENS", 5000)
    options = multilingual(across_languages=False, min_donors=100, held_out=0.2)
    partitions = plan([mixed], options)
    assert len(partitions) > 6, "more than one for a language"
    found = [members(mixed, p, options) for p in partitions]
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(len(mixed)))
    for partition, documents in zip(partitions, found, strict=True):
        assert len({LANGUAGES[s] for s in mixed.sources[documents]}) == 1
        assert len(documents) >= 2
        assert partition.units[-1].stop == len(documents)


def test_one_language_is_planned_as_if_nothing_were_asked(mixed):
    one = replace(multilingual(), languages=["fi"])
    assert plan([mixed], replace(one, across_languages=False)) == plan([mixed], one)


def test_streams_across_documents_stay_in_their_language(mixed, tmp_path):
    for across in (True, False):
        made = prepared(
            mixed, tmp_path / str(across), multilingual(across_languages=across, sequences="full_sentences")
        )
        assert (made[TRAIN]["streams_across_languages"] > 0) == across
        assert made[TRAIN]["pairs_across_languages"] == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"across_languages": False},
            r"another document in fi, and there is only one \(expected two documents",
        ),
        ({"across_languages": False, "sequences": "doc_sentences"}, None),
        ({"across_languages": False, "sequences": "sentence_order"}, None),
        ({}, None),
    ],
)
def test_a_language_of_one_document_has_no_donor(options, line):
    text = hashed(random_corpus(50), [1] + [0] * 49)[0]
    chosen = settings(sources=["a", "b"], languages=["en", "fi"], **options)
    if line:
        with pytest.raises(UserError, match=line):
            plan([text], chosen)
    else:
        assert plan([text], chosen)


def test_a_language_whose_only_document_aside_would_lack_a_donor_is_trained_on_whole(tmp_path):
    text = hashed(random_corpus(400))[0]
    options = settings(sources=["a", "b"], languages=["en", "fi"], across_languages=False, held_out=0.1)
    aside = is_held_out(text.keys, options)
    finnish = np.concatenate([np.flatnonzero(aside)[:1], np.flatnonzero(~aside)[:9]])
    text = replace(text, sources=np.isin(np.arange(400), finnish).astype(np.uint16))
    partitions = parsed_plan(plan_json(plan([text], options)))
    found = [members(text, p, options) for p in partitions]
    assert [(p.split, p.sources, p.whole) for p in partitions] == [
        (TRAIN, (0,), False),
        (TRAIN, (1,), True),
        (HELD_OUT, (0,), False),
    ]
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(400)), "none lost, none twice"
    assert np.array_equal(found[1], np.sort(finnish))
    assert prepared(text, tmp_path, options)[HELD_OUT]["languages"]["fi"]["examples"] == 0
    streams = plan([text], replace(options, sequences="doc_sentences"))
    assert [p.sources for p in streams] == [(0,), (1,), (0,), (1,)], "streams need no other document"


def test_a_single_document_is_refused_before_anything_is_gathered():
    text = hashed(random_corpus(1))[0]
    with pytest.raises(UserError, match=r"another document, and there is only one.*objective\.name=mlm"):
        plan([text], settings())


@pytest.mark.parametrize("name", RECIPES)
def test_only_recipes_that_draw_documents_need_two(name):
    text = hashed(random_corpus(1))[0]
    recipe = recipe_of(settings(sequences=name), vocabulary(int(text.tokens.max()) + 1))
    try:
        made = len(recipe.segments(text, 0, 1, 1, 1))
    except UserError:
        made = 0
    assert (made == 0) == recipe.draws_donors


# -- passes -------------------------------------------------------------------------------------


def test_shares_of_languages_come_out_as_smoothed(mixed, tmp_path):
    options = multilingual(smoothing=0.3, dupe_factor=5, sequences="doc_sentences", short_seq_prob=0)
    made = prepared(mixed, tmp_path, options)[TRAIN]
    amounts = np.bincount(mixed.sources, weights=np.diff(mixed.sentence_starts[mixed.document_starts]))
    expected = amounts * repeats(amounts, options) * 5
    by_language = {"en": expected[0] + expected[2], "fi": expected[1], "sv": expected[3]}
    for name, tokens in by_language.items():
        counts = made["languages"][name]
        text_tokens = counts["tokens"] - 2 * counts["examples"]
        assert text_tokens == pytest.approx(tokens, rel=0.03)
    assert by_language["en"] / by_language["fi"] < 0.7 * (amounts[0] + amounts[2]) / amounts[1]


def test_units_are_cut_by_the_passes_of_their_documents(mixed):
    options = multilingual(weights=[0.3, 2.0, 1.0, 0.01], dupe_factor=2)
    (partition,) = plan([mixed], options)
    tokens = np.diff(mixed.sentence_starts[mixed.document_starts])
    rates = partition.units[0].rates
    assert rates == (0.3, 2.0, 1.0, 0.01)
    passes = document_passes(mixed.keys, mixed.sources, rates, options.seed, 2)
    work = [int((tokens * passes)[u.start : u.stop].sum()) for u in partition.units]
    assert max(work[:-1]) < 3000 + 2 * 2 * tokens.max()
    assert min(work[:-1]) > 3000 - 2 * 2 * tokens.max()
    assert [u.start for u in partition.units[1:]] == [u.stop for u in partition.units[:-1]]
    assert (partition.units[0].start, partition.units[-1].stop) == (0, len(mixed))
    assert (passes == 0).any()


def test_no_unit_is_without_a_document_that_is_passed_over():
    text = hashed(corpus([1] * 40, [10] * 40), np.resize([0, 1], 40))[0]
    options = settings(sources=["a", "b"], weights=[1.0, 0.02], shard_tokens=20)
    (partition,) = plan([text], options)
    assert len(partition.units) > 5
    for unit in partition.units:
        chosen = slice(unit.start, unit.stop)
        assert document_passes(text.keys[chosen], text.sources[chosen], unit.rates, options.seed, 1).any()
    rare = replace(options, weights=[1e-9])
    with pytest.raises(UserError, match=r"data\.weights: pass over none of 40 train documents"):
        plan([text], rare)
    assert plan([text], replace(options, weights=[1.0]))[0].units[0] == Unit(0, 2)


def test_a_document_that_is_not_passed_over_is_still_a_donor():
    text, _ = hashed(random_corpus(200))
    found = pairs_of(text, settings(), np.resize([1, 0], 200))
    assert set((found[:, 0] % 2).tolist()) == {0}
    assert abs(surprise(np.bincount(found[:, 1] % 2), [1, 1])) < 3.5
