"""List the files of the sources with their formats, and compute how often the text of each source is used.

A source is a file, a folder, a glob or a URI; its files are listed by name, and formats.py recognises their formats.
Of a folder that Hugging Face `datasets` wrote, saved_datasets.py chooses the files.

How often the text of a source is used follows from its weight and from the smoothed share of its language.
Exponentially smoothed sampling (Devlin et al., multilingual BERT's README; google-research/bert/multilingual.md): a
language with the share p of the text gets the share q ~ p ** data.smoothing, both for the vocabulary's sample and for
the data. The total amount of text stays the same: a language gets q / p times the average number of passes. The
fractional part of the number of passes is drawn per document.
"""

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_pipeline.errors import UserError, redact
from data_pipeline.io.decompress import is_local
from data_pipeline.io.files import special_file
from data_pipeline.io.object_store import filesystem, with_retries
from data_pipeline.settings import MOST_PASSES, DataSettings, stated_languages, stated_weights
from data_pipeline.sources.formats import EXPECTED, INSTEAD, SourceFile, recognised, shown_name
from data_pipeline.sources.passed_over import PassedOver
from data_pipeline.sources.saved_datasets import DICT, INFO, STATE, described_files

# List the files of a source.

_WILDCARD = re.compile(r"[*?\[]")


def files_of(source: str, passed_over: PassedOver | None = None, split: str = "") -> list[SourceFile]:
    """Return the files of one source, by name. A folder's files of unknown formats, its devices, FIFOs and sockets are
    skipped and added to `passed_over`; a file that is named, or matched by a glob, must have a known format. `split`:
    data.split."""
    passed_over = PassedOver() if passed_over is None else passed_over
    fs, path = filesystem(source)
    ask = partial(with_retries, fs)
    web = "http" in (fs.protocol, *fs.protocol)  # for a web server, isdir would load the page
    matched = False
    if path.endswith("/") if web else ask(lambda: fs.isdir(path)):
        root, listed, required = path, ask(lambda: _files_below(fs, path)), False
    elif _is_file(fs, path):
        root, listed, required = path.rpartition("/")[0], [path], True
    elif wildcard := _WILDCARD.search(path):
        root, required, matched = path[: wildcard.start()].rpartition("/")[0], True, True
        listed = [
            f
            for match in ask(lambda: fs.glob(path))
            for f in (_files_below(fs, match) if fs.isdir(match) else [match])
        ]
    else:
        raise UserError("there is no such file or folder", where=source, remedy="check data.sources")
    root = root.rstrip("/") + "/"
    paths = _regular(fs, sorted(set(listed)), root, required, passed_over)
    if matched or not required:
        paths = described_files(
            paths,
            lambda path, most: ask(lambda: _head(fs, path, most)),
            split=split,
            name_of=lambda folder: folder.removeprefix(root) if folder + "/" != root else redact(source),
            passed_over=passed_over,
            described=ask(lambda: _descriptions(fs, paths, root)) if matched else (),
        )
    files = [ask(partial(recognised, fs, p, p.removeprefix(root), required)) for p in paths]
    known = [f for f in files if f]
    passed_over.other_kinds += [
        shown_name(p.removeprefix(root)) for p, f in zip(paths, files, strict=True) if not f
    ]
    if not known:
        if not listed and not is_local(fs):
            _check_reachable(fs, root)
        instead = next((i for p in paths for suffix, i in INSTEAD.items() if p.lower().endswith(suffix)), "")
        raise UserError(
            "no file to read here", where=source, expected=EXPECTED, remedy=instead or "check data.sources"
        )
    return known


def _files_below(fs: Any, folder: str) -> list[str]:
    """List the files in `folder` recursively, without hidden ones; local symlinks are followed, cycles are not."""
    if not is_local(fs):
        below = folder.rstrip("/") + "/"
        return [p for p in fs.find(folder) if "/." not in "/" + p.removeprefix(below)]

    def walk(path: str, above: tuple[str, ...]) -> Iterator[str]:
        real = os.path.realpath(path)
        if real in above:
            return
        for entry in os.scandir(path):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from walk(entry.path, (*above, real))
            else:
                yield entry.path

    return list(walk(folder, ()))


def _is_file(fs: Any, path: str) -> bool:
    """Return whether there is something to open under this name. Raises OSError where a store does not answer, which
    fsspec's own `isfile` takes for an absence."""
    if is_local(fs):
        return fs.isfile(path) or bool(special_file(path))
    try:
        return with_retries(fs, lambda: fs.info(path))["type"] == "file"
    except FileNotFoundError:
        return False


def _check_reachable(fs: Any, folder: str) -> None:
    """Raise OSError if the store does not answer: fsspec's listings take that for an empty folder."""
    with suppress(FileNotFoundError):
        with_retries(fs, lambda: fs.ls(folder, detail=False))


def _regular(fs: Any, paths: list[str], root: str, required: bool, passed_over: PassedOver) -> list[str]:
    """Return `paths` without devices, FIFOs and sockets: opening one may wait for ever, or never end."""
    if not is_local(fs):
        return paths
    kept = []
    for path in paths:
        if not (kind := special_file(path)):
            kept.append(path)
        elif required:
            raise UserError(
                f"is {kind}", where=shown_name(path), expected="a file or folder", remedy="check data.sources"
            )
        else:
            passed_over.special.append(shown_name(path.removeprefix(root)))
    return kept


def _descriptions(fs: Any, paths: list[str], root: str) -> list[str]:
    """List the descriptions of data sets that lie in the folders of Arrow files that a glob has matched, or between
    these and its root, and that it has not matched."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0] if path.endswith(".arrow") else ""
        while len(folder) >= len(root.rstrip("/")) and folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    candidates = [f"{folder}/{name}" for folder in sorted(folders) for name in (DICT, STATE, INFO)]
    return [c for c in candidates if c not in paths and fs.isfile(c)]


def _head(fs: Any, path: str, most: int) -> bytes:
    with fs.open(path, "rb") as file:
        return bytes(file.read(most))


# Compute how often each source's text is used, from source weights and smoothed language shares.

_DIGITS = 9
"""Decimals of a rate: fewer than a float has, so that the last bit of a machine's `pow` has no effect."""


def language_numbers(settings: DataSettings) -> tuple[list[str], NDArray[np.int64]]:
    """Return the languages in order of first appearance, and the index of each source's language among them.
    Raises UserError if data.languages and data.sources differ in length."""
    names = stated_languages(settings)
    languages = list(dict.fromkeys(names))
    return languages, np.array([languages.index(name) for name in names], np.int64)


def source_weights(settings: DataSettings) -> NDArray[np.float64]:
    """Return the weight of each source. Raises UserError as `stated_weights` does."""
    return np.array(stated_weights(settings))


def smoothed(shares: ArrayLike, exponent: float) -> NDArray[np.float64]:
    """Return the shares q ~ p ** exponent of languages with the shares (or amounts) p; a share of 0 stays 0.

    >>> smoothed([0.8046, 0.1916, 0.0038], 0.7).round(3).tolist()
    [0.72, 0.264, 0.017]
    """
    amounts = np.asarray(shares, np.float64)
    total = amounts.sum()
    if total <= 0.0:
        return np.zeros(len(amounts))
    raised = np.array([math.pow(a / total, exponent) if a > 0.0 else 0.0 for a in amounts])
    return raised / raised.sum()


def repeats(amounts: ArrayLike, settings: DataSettings) -> NDArray[np.float64]:
    """Compute how often each source's text is used, before dupe_factor: its weight times q / p of its language, where
    p is the language's share of the weighted text.

    `amounts`: the text of each source, in any unit (tokens, bytes, ...); sources beyond its length have none. The
    total of the weighted text is preserved. Rounded to nine decimals. Raises UserError as
    `language_numbers` and `source_weights` do."""
    languages, numbers = language_numbers(settings)
    weights = source_weights(settings)
    if settings.smoothing == 1.0 or len(languages) == 1:  # q = p to the last bit
        return weights.round(_DIGITS)
    text = np.zeros(len(weights))
    given = np.asarray(amounts, np.float64)
    text[: len(given)] = given
    share = np.bincount(numbers, weights=text * weights, minlength=len(languages))
    taken = smoothed(share, settings.smoothing) * share.sum()
    rates = np.divide(taken, share, out=np.ones(len(share)), where=share > 0.0)
    return (weights * rates[numbers]).round(_DIGITS)


def document_passes(
    keys: NDArray[np.uint64],
    sources: NDArray[np.unsignedinteger],
    rates: ArrayLike,
    seed: int,
    dupe_factor: int,
) -> NDArray[np.int64]:
    """Compute the passes over each document: dupe_factor times the rate of its source, rounded down, plus one with the
    probability of the fractional part, drawn from (seed, key) alone. Without rates: dupe_factor.

    Raises UserError if that exceeds MOST_PASSES."""
    expected = (np.asarray(rates, np.float64) * dupe_factor).round(_DIGITS)
    if not len(expected):
        return np.full(len(keys), dupe_factor, np.int64)
    if expected.max() > MOST_PASSES:
        raise UserError(
            f"asks for {expected.max():.0f} passes over a source",
            where="data.weights",
            expected=f"at most {MOST_PASSES} passes",
            remedy="lower its weight or data.dupe_factor, or raise data.smoothing towards 1",
        )
    whole = np.floor(expected)
    limits = ((expected - whole) * 2.0**64).astype(np.uint64)  # below 1 by nine decimals: it fits
    from data_pipeline import rng

    drawn = rng.first_words(seed % 2**64, keys, rng.PASSES) < limits[sources]
    return whole.astype(np.int64)[sources] + drawn
