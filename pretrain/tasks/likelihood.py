"""Score sentences by their log-likelihood under a model that predicts words: BLiMP, and the perplexity of text.

Nothing is trained. Models are masked, permuted (XLNet) or left to right. A masked model's score of a sentence is its
pseudo-log-likelihood (Salazar et al. 2020): every token is masked in turn, and the log-probabilities of the true ones
are added up, not divided by the length.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from data_pipeline.errors import UserError
from data_pipeline.io.files import file_sha256
from data_pipeline.settings import DataSettings
from data_pipeline.shards.statistics import unigram_entropy
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.read import discover, read
from data_pipeline.tokenize.sentences import split
from pretrain.tasks.base import Material, ScoreInputs, Scores, Untrained
from pretrain.tasks.encoders import (
    chosen_device,
    precision,
    projected_rows,
    refuse_discriminator,
    tokens_per_pass,
)
from pretrain.tasks.files import evenly_spaced, hashes, parsed_json, read_lines
from pretrain.tasks.inputs import Input, InputBuilder, batches_by_cost, padded, token_slice
from pretrain.tasks.settings import EvaluationSettings

# Compute the log-likelihood of sentences.


class SentenceScores(NamedTuple):
    """What a model says of some sentences."""

    log_likelihoods: NDArray[np.float64]
    """Of each sentence the sum of the log-probabilities (nats) of its tokens."""
    tokens: NDArray[np.int64]
    """Of each sentence how many tokens these are."""
    frequencies: NDArray[np.int64]
    """(vocabulary,) how often each token is among them."""
    unknown_share: float
    """Share of them that the vocabulary does not know."""
    cut: int
    """Sentences that were longer than the model has positions for."""
    read: NDArray[np.int64]
    """Of each sentence its characters up to the end of the last token that was scored; all where it was not cut."""


def score_sentences(inputs: ScoreInputs, sentences: Sequence[str]) -> SentenceScores:
    """Score sentences of `inputs.material`, each read as the model's single sequence, segment 0.

    Masked models (Salazar et al. 2020): each token masked in turn. XLNet: each token predicted by the query stream, all
    others visible. Left-to-right models: each token from those before it. Special tokens are not predicted.

    Sentences of the same ids are scored once, so that their scores are equal to the bit: two copies in batches of other
    sizes may differ by rounding, and one would be the likelier one.

    Raises UserError for a model without a head for words, as ELECTRA's discriminator."""
    encoder = inputs.encoder
    refuse_discriminator(encoder)
    is_causal = encoder.reads_one_way
    kind = "ForCausalLM" if is_causal or encoder.config.model_type == "xlnet" else "ForMaskedLM"
    device = chosen_device()
    model = encoder.load(kind, inputs.seed, has_head=True)
    model.to(device)  # type: ignore[arg-type]  # its decorator loses the type
    if kind == "ForMaskedLM" and encoder.tokenizer.mask_token_id is None:
        raise UserError("its tokenizer has no mask token", where=encoder.folder)
    builder = encoder.builder(encoder.max_positions if encoder.max_positions < 1 << 20 else 512)
    texts = [builder.single(sentence) for sentence in sentences]
    distinct, copies = _distinct(texts)
    most = tokens_per_pass(device)
    if is_causal:
        scorer: Scorer = Causal(model, builder, device, inputs.settings)
        batches = batches_by_cost([len(one.ids) for one in distinct], most)
    else:
        chosen = Permuted if encoder.config.model_type == "xlnet" else Masked
        scorer = chosen(model, builder, device, inputs.settings)
        batches = batches_by_cost([len(one.ids) ** 2 for one in distinct], most)
    found, counts = np.zeros(len(distinct)), np.bincount(copies, minlength=len(distinct))
    for batch in batches:
        found[batch] = scorer.score([distinct[i] for i in batch])
        inputs.on_progress(int(counts[batch].sum()))
    predicted = [[one.ids[place] for place in scorer.predicted(one)] for one in texts]
    frequencies = np.bincount([token for ids in predicted for token in ids], minlength=len(encoder.tokenizer))
    unknown = 0 if builder.unknown is None else int(frequencies[builder.unknown])
    return SentenceScores(
        found[copies],
        np.array([len(ids) for ids in predicted]),
        frequencies,
        unknown / max(1, int(frequencies.sum())),
        sum(one.was_cut for one in texts),
        np.array([one.read for one in texts]),
    )


def _distinct(inputs: Sequence[Input]) -> tuple[list[Input], NDArray[np.int64]]:
    """Return the inputs without those of the same ids as an earlier one, and of each of `inputs` its place there."""
    places: dict[tuple[int, ...], int] = {}
    copies = [places.setdefault(tuple(one.ids), len(places)) for one in inputs]
    first: dict[int, Input] = {}
    for place, one in zip(copies, inputs, strict=True):
        first.setdefault(place, one)
    return list(first.values()), np.array(copies, np.int64)


class Scorer(ABC):
    """What the three ways to score have in common."""

    def __init__(
        self,
        model: PreTrainedModel,
        builder: InputBuilder,
        device: torch.device,
        settings: EvaluationSettings,
    ) -> None:
        self.model, self.builder, self.device, self.settings = model, builder, device, settings
        self.special = set(builder.tokenizer.all_special_ids) - {builder.unknown}

    @abstractmethod
    def score(self, sentences: list[Input]) -> list[float]:
        """Return the log-likelihood of each sentence."""

    def predicted(self, one: Input) -> list[int]:
        """Return the places of the tokens that count: all but the special ones."""
        return [place for place, token in enumerate(one.ids) if token not in self.special]

    def forward(self, arrays: dict[str, NDArray[Any]], **tensors: Tensor) -> Tensor:
        """Return the logits of a batch."""
        batch = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        with precision(self.settings.precision, self.device, fine_tuned=False):
            return self.model(**batch, **tensors).logits


class Masked(Scorer):
    """A copy of the sentence per token, that token masked."""

    @torch.no_grad()
    def score(self, sentences: list[Input]) -> list[float]:
        rows = [(n, place) for n, one in enumerate(sentences) for place in self.predicted(one)]
        most = max(1, tokens_per_pass(self.device) // max(len(one.ids) for one in sentences))
        found = np.zeros(len(sentences))
        for start in range(0, len(rows), most):
            found += self._sums(sentences, rows[start : start + most])
        return found.tolist()

    def _sums(self, sentences: list[Input], rows: list[tuple[int, int]]) -> NDArray[np.float64]:
        """Return what these rows add to the score of each sentence."""
        owners, places, arrays = self._rows(sentences, rows)
        index = torch.arange(len(rows), device=self.device)
        targets = torch.from_numpy(arrays["input_ids"][np.arange(len(rows)), places]).to(self.device)
        logits = self._logits(arrays, index, torch.from_numpy(places).to(self.device))
        chosen = logits.float().log_softmax(-1)[index, targets].double().cpu().numpy()
        return np.bincount(owners, chosen, minlength=len(sentences)).astype(np.float64)

    def _rows(
        self, sentences: list[Input], rows: list[tuple[int, int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Return of each row its sentence, the place of its predicted token, and the unmasked arrays."""
        arrays = padded([sentences[n] for n, _ in rows], self.builder)
        longest, left = arrays["input_ids"].shape[1], self.builder.left_padded
        places = [token_slice(len(sentences[n].ids), longest, left).start + place for n, place in rows]
        return np.array([n for n, _ in rows]), np.array(places), arrays

    def _logits(self, arrays: dict[str, NDArray[Any]], index: Tensor, places: Tensor) -> Tensor:
        """Return the (rows, vocabulary) logits at the places, which are masked."""
        mask = self.builder.tokenizer.mask_token_id
        ids = torch.from_numpy(arrays["input_ids"]).to(self.device)
        ids[index, places] = mask
        rest = {name: array for name, array in arrays.items() if name != "input_ids"}
        with projected_rows(self.model, index, places):
            return self.forward(rest, input_ids=ids)


class Permuted(Masked):
    """XLNet: the query stream of each token's place attends to all other tokens, never to the one that it predicts
    (Yang et al. 2019, section 2.3)."""

    def _logits(self, arrays: dict[str, NDArray[Any]], index: Tensor, places: Tensor) -> Tensor:
        count, longest = arrays["input_ids"].shape
        hidden = torch.zeros(count, longest, longest, device=self.device)
        hidden[index, :, places] = 1.0  # nobody sees the token, itself included
        wanted = torch.zeros(count, 1, longest, device=self.device)
        wanted[index, 0, places] = 1.0
        return self.forward(arrays, perm_mask=hidden, target_mapping=wanted)[:, 0]


class Causal(Scorer):
    """A left-to-right model: the log-probability of each token given those before it, [CLS] or another start first."""

    @torch.no_grad()
    def score(self, sentences: list[Input]) -> list[float]:
        arrays = padded(sentences, self.builder)
        logits = self.forward(arrays).float().log_softmax(-1)
        ids = torch.from_numpy(arrays["input_ids"]).to(self.device)
        steps = logits[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].double().cpu().numpy()
        return [
            float(sum(steps[n, place - 1] for place in self.predicted(one)))
            for n, one in enumerate(sentences)
        ]

    def predicted(self, one: Input) -> list[int]:
        """Return the places of the tokens that count: not a first one, which nothing is before."""
        return [place for place in super().predicted(one) if place]


# Score BLiMP (Warstadt et al. 2020): which of two sentences that differ minimally is the likelier one.


S_SELECTION = {"s-selection": "argument_structure"}
"""The files name 13 groups, the paper 12: it counts the sets of selectional restrictions (animate subjects) with the
argument structure (Warstadt et al. 2020, table 1)."""
SETS, PAIRS = 67, 1000
KEYS = ("sentence_good", "sentence_bad", "linguistics_term", "UID")


class Paradigm(NamedTuple):
    """One of the 67 sets of pairs."""

    name: str
    group: str
    good: list[str]
    bad: list[str]


class Blimp(Untrained):
    """The task `blimp`. Its items are sentences, two of each pair."""

    def __init__(self) -> None:
        super().__init__("blimp", "BLiMP", "accuracy")

    def read(self, folder: Path, settings: EvaluationSettings) -> Material:
        """Read every *.jsonl of the folder; of each the evenly spaced share that settings.part says. Raises UserError
        where there is none, or a line lacks a key."""
        paths = sorted(folder.glob("*.jsonl"))
        if not paths:
            raise UserError("has no *.jsonl", where=folder, expected="the 67 files of BLiMP")
        found = [_paradigm(path, settings.part) for path in paths]
        size, notes = sum(2 * len(one.good) for one, _ in found), _notes([count for _, count in found])
        if settings.part < 1:
            notes.append(f"{settings.part:.0%} of each set")
        return Material([one for one, _ in found], size, hashes(paths), tuple(notes))

    def score(self, inputs: ScoreInputs) -> dict[str, Any]:
        """Return {"scores": {"accuracy": mean over the sets, "group_accuracy": mean over the groups of sets, as BabyLM
        has it (Warstadt et al. 2023)}, "groups", "paradigms", "unknown_share"}, in percent. Pairs of equal scores do
        not count as right."""
        paradigms = inputs.material.items
        found = score_sentences(inputs, [text for one in paradigms for text in (*one.good, *one.bad)])
        return {
            **summary(paradigms, found.log_likelihoods),
            "unknown_share": 100 * found.unknown_share,
            "trivial": dict.fromkeys(("accuracy", "group_accuracy"), 50.0),
            "notes": [f"{found.cut} sentences were cut to the encoder's positions"] if found.cut else [],
        }


def _notes(counts: list[int]) -> list[str]:
    """Return in what the files are not BLiMP as published, from the number of pairs of each."""
    others = sum(count != PAIRS for count in counts)
    notes = [f"{len(counts)} sets, of the {SETS} of BLiMP"] if len(counts) != SETS else []
    return notes + ([f"{others} sets have not {PAIRS:,} pairs"] if others else [])


def _paradigm(path: Path, part: float) -> tuple[Paradigm, int]:
    """Return a set, this share of its pairs, and how many it has."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = parsed_json(line, path, number)
            rows.append({key: str(row[key]) for key in KEYS})
        except (ValueError, KeyError, TypeError):
            raise UserError(
                "is no pair of BLiMP", where=f"{path}, line {number}", expected=f"the keys {', '.join(KEYS)}"
            ) from None
    if not rows:
        raise UserError("has no example", where=path, expected=f"{PAIRS:,} pairs")
    kept = [rows[i] for i in evenly_spaced(len(rows), part)]
    good, bad = ([row[key] for row in kept] for key in KEYS[:2])
    group = kept[0]["linguistics_term"]
    return Paradigm(kept[0]["UID"], S_SELECTION.get(group, group), good, bad), len(rows)


def summary(paradigms: list[Paradigm], found: NDArray[np.float64]) -> dict[str, Any]:
    """Return the accuracy of each set, of each group of sets and their mean, from the score of each sentence: of each
    set first its good ones, then its bad ones."""
    accuracies, start = {}, 0
    for one in paradigms:
        count = len(one.good)
        good, bad = found[start : start + count], found[start + count : start + 2 * count]
        accuracies[one.name] = 100 * float((good > bad).mean())
        start += 2 * count
    members: dict[str, list[float]] = {}
    for one in paradigms:
        members.setdefault(one.group, []).append(accuracies[one.name])
    groups = {group: float(np.mean(values)) for group, values in sorted(members.items())}
    scores: Scores = {
        name: float(np.mean(list(values.values())))
        for name, values in (("accuracy", accuracies), ("group_accuracy", groups))
    }
    return {"scores": scores, "groups": groups, "paradigms": accuracies}


# Compute the pseudo-perplexity of text (Salazar et al. 2020, section 2.3): how many words a masked model hesitates
# between when it sees all of a sentence but one token.


class Perplexity(Untrained):
    """The task `perplexity`. Its items are sentences."""

    def __init__(self) -> None:
        super().__init__("perplexity", ".", "perplexity")

    def read(self, folder: Path, settings: EvaluationSettings) -> Material:
        """Read every file of text that `maskmill prepare` reads too, in sentences; of these the evenly spaced share
        that settings.part says. `folder` may be one such file. Raises UserError where there is none."""
        reading = DataSettings(sources=[str(folder)])
        parts, counts = discover(reading), Counts()
        found = [
            sentence
            for part in parts
            for document in read(part, reading, counts)
            for sentence in split(document, reading, counts).sentences
        ]
        if not found:
            raise UserError("has no sentence", where=folder)
        kept = [found[i] for i in evenly_spaced(len(found), settings.part)]
        names = sorted({part.name for part in parts})
        notes = [
            f"{count:,} {what}"
            for what, count in (
                ("invalid characters were read as U+FFFD", counts.invalid_characters),
                ("control characters were left out", counts.control_characters),
                ("pages that are no articles were left out", counts.pages_passed_over),
            )
            if count
        ]
        if settings.part < 1:
            notes.append(f"{settings.part:.0%} of the sentences")
        place = folder.parent if folder.is_file() else folder
        files = {name: file_sha256(place / name) for name in names}
        return Material(kept, len(kept), files, tuple(notes), counts.pages_passed_over)

    def score(self, inputs: ScoreInputs) -> dict[str, Any]:
        """Return the perplexity per token; per word (by white space) and the bits per character, which encoders of
        different vocabularies can be compared by. Of a sentence that was cut the words and characters up to its last
        token count, a word that is cut in two as one. Left-to-right models have an ordinary perplexity. Trivial: the
        entropy of the tokens' frequencies in the same text, which is lower than any fixed distribution's."""
        sentences = inputs.material.items
        found = score_sentences(inputs, sentences)
        tokens = int(found.tokens.sum())
        if not tokens:
            raise UserError("has nothing that the encoder's vocabulary reads", where=inputs.encoder.folder)
        total = -float(found.log_likelihoods.sum())
        scored = [text[:end] for text, end in zip(sentences, found.read.tolist(), strict=True)]
        words, characters = sum(len(text.split()) for text in scored), sum(map(len, scored))
        guess = tokens * unigram_entropy(found.frequencies)
        notes = [f"{found.cut} sentences were cut to the encoder's positions"] if found.cut else []
        return {
            "scores": _figures(total, tokens, words, characters),
            "trivial": _figures(guess, tokens, words, characters),
            "unknown_share": 100 * found.unknown_share,
            "sentences": len(sentences),
            "tokens": tokens,
            "notes": notes,
        }


def _figures(nats: float, tokens: int, words: int, characters: int) -> dict[str, float]:
    """Return the figures of a text of this negative log-likelihood."""
    return {
        "perplexity": math.exp(min(700.0, nats / tokens)),
        "perplexity_per_word": math.exp(min(700.0, nats / words)),
        "bits_per_character": nats / characters / float(np.log(2)),
    }
