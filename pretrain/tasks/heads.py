"""Define, save and load heads that transformers has no class for: taggers, classifiers of texts, and parsers.

Words are tagged by features of a frozen encoder: chosen layers, a BiLSTM and a linear layer are all that is trained
(Devlin et al. 2019, section 5.3 and Table 7). The tags of a sentence may be chosen together, by a conditional random
field over the scores of this tagger or of transformers' own.

Texts are classified by the last token, the only one that sees all of a text in a model that reads in one direction,
or by a BiLSTM on the encoder (section 5.1).

Trees of dependencies are parsed by deep biaffine attention (Dozat and Manning 2017), beside a linear tagger for each
other column. Everything is per token, at the first token of each word, so that a batch has one shape. The
classification token stands for the root.

Heads are safetensors files beside the encoder's own.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from data_pipeline.errors import UserError, first_line
from pretrain.tasks.encoders import tokens_per_pass, width_of
from pretrain.tasks.inputs import IGNORED, Feature, InputBuilder, collate, scoring_batches, sizes, token_slice

# Read an encoder's hidden states by a BiLSTM (Devlin et al. 2019, sections 5.1 and 5.3).


WIDTH, LAYERS = 768, 2
"""The paper does not say whether 768 is the width of each direction or of both: here both. Nor does it state the layers
of section 5.1: here as many as in 5.3."""


class Read(NamedTuple):
    """What a BiLSTM says of texts."""

    states: Tensor
    """(examples, tokens, WIDTH): of each token; 0 in padding."""
    ends: Tensor
    """(examples, WIDTH): of each text, where either direction has read all of it."""


class BiLstm(nn.LSTM):
    """A BiLSTM over texts that are padded at either side."""

    def __init__(self, width: int) -> None:
        """`width`: of the vectors that it reads."""
        super().__init__(width, WIDTH // 2, LAYERS, batch_first=True, bidirectional=True)

    def read(self, vectors: Tensor, attention_mask: Tensor) -> Read:
        """Read (examples, tokens, width) vectors where the (examples, tokens) mask is 1."""
        # an LSTM packs rows that begin at the left: those that are padded there are turned round and back
        places = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        turns = (attention_mask.argmax(1)[:, None] + places) % attention_mask.shape[1]
        packed = pack_padded_sequence(
            vectors.gather(1, turns[..., None].expand_as(vectors)),
            attention_mask.sum(1).cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        out, (ends, _) = self(packed)
        states, _ = pad_packed_sequence(out, batch_first=True, total_length=attention_mask.shape[1])
        states = torch.zeros_like(states).scatter(1, turns[..., None].expand_as(states), states)
        return Read(states, torch.cat([ends[-2], ends[-1]], -1))


# Save and load heads, and define what they return.


HEAD_FILE = "head.safetensors"
"""Name of the file beside an encoder's own."""
LABELS = "labels"
"""Key of the classes' names in it, and of those of a head that has one set of classes."""


class Output(NamedTuple):
    """The loss where targets are given, and (examples, tokens, ...) logits: what transformers' models return by the
    same names."""

    loss: Tensor | None
    logits: Tensor


def save_beside(
    head: nn.Module, path: Path, labels: Mapping[str, Sequence[str]] | None = None, without: str = ""
) -> None:
    """Write a head's weights to `path`, except those whose names begin with `without`, and with them the names of its
    classes."""
    weights = {
        name: value.detach().cpu().contiguous()
        for name, value in head.state_dict().items()
        if not (without and name.startswith(without))
    }
    save_file(weights, path, {LABELS: json.dumps(dict(labels or {}), ensure_ascii=False)})


def load_beside(head: nn.Module, path: Path, without: str = "") -> None:
    """Read a head's weights. Raises UserError where there are none, or others than the head has."""
    try:
        with safe_open(path, "pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"the head cannot be read: {first_line(error)}",
            where=path,
            expected="a model that maskmill evaluate --save wrote with the same settings",
        ) from error
    wanted = {
        name: value.shape
        for name, value in head.state_dict().items()
        if not (without and name.startswith(without))
    }
    if wanted != {name: value.shape for name, value in found.items()}:
        raise UserError(
            "the head has other weights", where=path, expected="a head of the same labels and settings"
        )
    head.load_state_dict(found, strict=False)


def labels_beside(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes of a saved head. Raises UserError where there is none."""
    try:
        with safe_open(path, "pt") as file:
            sets = json.loads((file.metadata() or {})[LABELS])
            return {str(name): tuple(map(str, labels)) for name, labels in sets.items()}
    except (OSError, SafetensorError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise UserError(
            f"the head cannot be read: {first_line(error)}",
            where=path,
            expected="a model that maskmill evaluate --save wrote",
        ) from error


class EncoderHead(nn.Module):
    """An encoder with a head, which is saved beside it."""

    base_model_prefix = "encoder"

    def __init__(self, encoder: Any, label_sets: Mapping[str, Sequence[str]]) -> None:
        """`encoder`: a bare model of transformers. `label_sets`: the names of the classes that are saved with the
        head."""
        super().__init__()
        self.encoder, self.label_sets = encoder, label_sets

    def save_pretrained(self, folder: Path) -> None:
        """Write the encoder as a folder of its own, and the head with its labels beside it."""
        self.encoder.save_pretrained(folder)
        save_beside(self, folder / HEAD_FILE, self.label_sets, without="encoder.")

    def load_head(self, folder: Path) -> Self:
        """Read the head that `save_pretrained` wrote. Raises UserError where there is none of this shape."""
        load_beside(self, folder / HEAD_FILE, without="encoder.")
        return self


# Choose the tags of a sentence together: a linear-chain conditional random field over a tagger's scores (Lafferty et
# al. 2001; over neural scores Lample et al. 2016, section 2.2).


FILE = "crf.safetensors"
IMPOSSIBLE = -1e4
"""Score of what BIO2 does not allow."""


class Crf(nn.Module):
    """Scores of each tag at the start, behind another one, and at the end; learnt from 0, fixed where BIO2 forbids."""

    def __init__(self, tags: Sequence[str]) -> None:
        super().__init__()
        count = len(tags)
        self.start, self.end = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.zeros(count))
        self.between = nn.Parameter(torch.zeros(count, count))
        follows = [[may_follow(before, tag) for tag in tags] for before in tags]
        self.register_buffer("forbidden", ~torch.tensor(follows), persistent=False)
        self.register_buffer(
            "forbidden_start", ~torch.tensor([may_follow("O", t) for t in tags]), persistent=False
        )

    def loss(self, scores: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """Return the negative log-likelihood of the true tags, the mean over all words, so that it is on the scale of
        the cross-entropy of a tag. scores: (sentences, words, tags). tags: (sentences, words). lengths: (sentences,),
        at least 1; what is behind them is not read."""
        return (self._all_paths(scores, lengths) - self._path(scores, tags, lengths)).sum() / lengths.sum()

    def _path(self, scores: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """Return the score of each sentence's true tags."""
        start, between = self._transitions()
        inside = torch.arange(scores.shape[1], device=scores.device) < lengths[:, None]
        words = scores.gather(2, tags[..., None])[..., 0]
        steps = between[tags[:, :-1], tags[:, 1:]]
        last = tags.gather(1, lengths[:, None] - 1)[:, 0]
        zero = scores.new_zeros(())
        return (
            start[tags[:, 0]]
            + torch.where(inside, words, zero).sum(1)
            + torch.where(inside[:, 1:], steps, zero).sum(1)
            + self.end[last]
        )

    def _all_paths(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the log of the sum of exp(score) over all sequences of tags, by the forward algorithm."""
        start, between = self._transitions()
        total = start + scores[:, 0]
        for word in range(1, scores.shape[1]):
            longer = torch.logsumexp(total[:, :, None] + between, 1) + scores[:, word]
            total = torch.where((word < lengths)[:, None], longer, total)
        return torch.logsumexp(total + self.end, 1)

    def best(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the likeliest tags, (sentences, words), by Viterbi's algorithm; those behind a sentence's end are
        its last one. Arguments as in `loss`."""
        start, between = self._transitions()
        total, origins = start + scores[:, 0], []
        for word in range(1, scores.shape[1]):
            longer, origin = (total[:, :, None] + between).max(1)
            inside = (word < lengths)[:, None]
            total = torch.where(inside, longer + scores[:, word], total)
            origins.append(torch.where(inside, origin, torch.arange(origin.shape[1], device=origin.device)))
        tags = [(total + self.end).argmax(1)]
        for origin in reversed(origins):
            tags.append(origin.gather(1, tags[-1][:, None])[:, 0])
        return torch.stack(tags[::-1], 1)

    def _transitions(self) -> tuple[Tensor, Tensor]:
        return (
            self.start.masked_fill(self.get_buffer("forbidden_start"), IMPOSSIBLE),
            self.between.masked_fill(self.get_buffer("forbidden"), IMPOSSIBLE),
        )


def may_follow(before: str, tag: str) -> bool:
    """Return whether BIO2 allows a tag behind another one.

    >>> may_follow("B-PER", "I-PER"), may_follow("O", "I-PER"), may_follow("B-LOC", "I-PER"), may_follow("O", "O")
    (True, False, False, True)
    """
    return not tag.startswith("I-") or before[2:] == tag[2:]


class CrfTagger(nn.Module):
    """A tagger of tokens whose scores at the first tokens of words go through a CRF."""

    def __init__(self, tagger: Any, tags: Sequence[str]) -> None:
        super().__init__()
        self.tagger, self.crf = tagger, Crf(tags)
        self.base_model_prefix = f"tagger.{tagger.base_model_prefix}"

    def forward(self, labels: Tensor, **batch: Tensor) -> Output:
        """Return, while training, the loss; else (examples, tokens, tags) that are 1 for the chosen tag of each word at
        its first token and 0 elsewhere. labels: (examples, tokens), IGNORED but at the first tokens of words; what
        else they are matters to the loss alone."""
        scores = self.tagger(**batch).logits.float()
        is_word = labels != IGNORED
        lengths = is_word.sum(1)
        # words to the front, in their order
        order = torch.argsort(~is_word, dim=1, stable=True)[:, : max(1, int(lengths.max()))]
        of_words = scores.gather(1, order[..., None].expand(-1, -1, scores.shape[-1]))
        some = lengths > 0  # a sentence may have been cut down to nothing
        of_words, lengths, kept = of_words[some], lengths[some], order[some]
        if self.training:
            tags = labels[some].gather(1, kept).clamp(min=0)
            return Output(self.crf.loss(of_words, tags, lengths), scores)
        best = functional.one_hot(self.crf.best(of_words, lengths), scores.shape[-1]).to(scores.dtype)
        inside = torch.arange(best.shape[1], device=best.device) < lengths[:, None]
        chosen = torch.zeros_like(scores[some])
        chosen.scatter_(1, kept[..., None].expand_as(best), best * inside[..., None])
        found = torch.zeros_like(scores)
        found[some] = chosen
        return Output(None, found)

    def save_pretrained(self, folder: Path) -> None:
        """Write the tagger as it is saved alone, and the CRF beside it."""
        self.tagger.save_pretrained(folder)
        save_beside(self.crf, folder / FILE)

    def load_crf(self, folder: Path) -> "CrfTagger":
        """Read the CRF that `save_pretrained` wrote. Raises UserError where there is none of these tags."""
        load_beside(self.crf, folder / FILE)
        return self


# Tag words by features of a frozen encoder, which are computed once for all epochs.


def chosen_layers(name: str, count: int) -> range:
    """Return which hidden states of an encoder of `count` layers a setting of `features` stands for; 0 is what the
    embeddings give, `count` the last layer.

    >>> [list(chosen_layers(name, 6)) for name in ("embeddings", "last", "concat_last_4")]
    [[0], [6], [3, 4, 5, 6]]
    >>> list(chosen_layers("sum_last_4", 2))
    [1, 2]
    """
    last = count + 1
    return {
        "embeddings": range(1),
        "second_to_last": range(max(0, last - 2), last - 1),
        "last": range(last - 1, last),
        "sum_last_4": range(max(1, last - 4), last),
        "concat_last_4": range(max(1, last - 4), last),
        "sum_all": range(1, last),
    }[name]


class FrozenTagger(EncoderHead):
    """A BiLSTM and a linear layer on hidden states of an encoder that learns nothing."""

    def __init__(self, encoder: Any, features: str, labels: int, dropout: float) -> None:
        """`encoder`: a bare model of transformers. `dropout`: of the BiLSTM's input."""
        super().__init__(encoder.requires_grad_(False), {})
        config = encoder.config
        self.layers = chosen_layers(features, int(config.num_hidden_layers))
        self.concatenates = features.startswith("concat")
        width = width_of(encoder)
        # ELMo's weighted sum (Peters et al. 2018, equation 1): softmax of a weight per layer, and a scale
        self.weights, self.scale = nn.Parameter(torch.zeros(len(self.layers))), nn.Parameter(torch.ones(1))
        self.dropout = nn.Dropout(max(dropout, 0.0))
        self.lstm = BiLstm(width * len(self.layers) if self.concatenates else width)
        self.classifier = nn.Linear(WIDTH, labels)

    def forward(
        self,
        attention_mask: Tensor,
        labels: Tensor | None = None,
        states: Tensor | None = None,
        **batch: Tensor,
    ) -> Output:
        """Return the loss, if there are labels, and (examples, tokens, labels) logits. states: (examples, tokens,
        layers, width) as `hidden` gives them, which are computed where they are not given."""
        if states is None:
            states = self.hidden(attention_mask=attention_mask, **batch)
        vectors = self.dropout(self._mixed(states.float()))
        logits = self.classifier(self.lstm.read(vectors, attention_mask).states)
        if labels is None:
            return Output(None, logits)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return Output(loss, logits)

    def _mixed(self, states: Tensor) -> Tensor:
        """Return (examples, tokens, width): the layers side by side, or their weighted sum."""
        if self.concatenates:
            return states.flatten(2)
        return self.scale * torch.einsum("btlh,l->bth", states, self.weights.softmax(0))

    @torch.no_grad()
    def hidden(self, **batch: Tensor) -> Tensor:
        """Return the frozen encoder's chosen hidden states, (examples, tokens, layers, width), without dropout."""
        self.encoder.eval()
        found = self.encoder(**batch, output_hidden_states=True).hidden_states
        return torch.stack([found[layer] for layer in self.layers], 2)


def frozen_tagger(model: nn.Module) -> FrozenTagger:
    """Return the part of a model that reads hidden states."""
    return next(module for module in model.modules() if isinstance(module, FrozenTagger))


def with_states(
    model: FrozenTagger,
    features: Sequence[Feature],
    builder: InputBuilder,
    device: torch.device,
    advance: Callable[[int], None],
) -> list[Feature]:
    """Return the features with the encoder's hidden states, computed once for all epochs: float16, 2 bytes for each
    token, layer and width.

    Raises UserError where a state is too large for them."""
    lengths = sizes(features)
    found: list[Feature] = list(features)
    for chosen in scoring_batches(lengths, tokens_per_pass(device)):
        batch = collate([replace(features[i], targets={}) for i in chosen], builder, device, choices=False)
        states = model.hidden(**batch).to(torch.float16).cpu().numpy()
        if not np.isfinite(states).all():
            raise UserError(
                "hidden states are beyond the range of float16",
                where="features",
                remedy="take other layers: maskmill evaluate x --settings lists them",
            )
        longest = states.shape[1]
        for i, row in zip(chosen.tolist(), states, strict=True):
            place = token_slice(int(lengths[i]), longest, builder.left_padded)
            found[i] = replace(features[i], states=row[place])
        advance(len(chosen))
    return found


# Classify texts by their last token, or by a BiLSTM.


class TextClassifier(EncoderHead):
    """A linear layer on the last hidden state of each text's last token ([SEP] where the model reads left to right, and
    [CLS] where its input is reversed), or on what a BiLSTM over all its tokens ends with."""

    def __init__(self, encoder: Any, labels: tuple[str, ...], dropout: float, bilstm: bool) -> None:
        """`encoder`: a bare model of transformers. `labels`: empty for a number. `dropout`: of the vector that is
        classified, and of those that the BiLSTM reads."""
        super().__init__(encoder, {LABELS: labels})
        self.labels = labels
        self.dropout = nn.Dropout(max(dropout, 0.0))
        self.lstm = BiLstm(width_of(encoder)) if bilstm else None
        self.classifier = nn.Linear(WIDTH if bilstm else width_of(encoder), len(labels) or 1)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, attention_mask: Tensor, labels: Tensor | None = None, **batch: Tensor) -> Output:
        """Return the loss, if there are labels (mean cross-entropy, or squared error of a number), and (examples,
        classes) logits."""
        states = self.encoder(attention_mask=attention_mask, **batch).last_hidden_state
        if self.lstm is not None:
            vectors = self.lstm.read(self.dropout(states.float()), attention_mask).ends
        else:
            places = torch.arange(1, states.shape[1] + 1, device=states.device)
            last = (attention_mask * places).argmax(1)
            vectors = states[torch.arange(len(states), device=states.device), last]
        logits = self.classifier(self.dropout(vectors))
        if labels is None:
            return Output(None, logits)
        if self.labels:
            return Output(functional.cross_entropy(logits, labels), logits)
        return Output(functional.mse_loss(logits[:, 0], labels.to(logits.dtype)), logits)


# Parse: score the tags of words and the arcs between them.


ARC_WIDTH, LABEL_WIDTH, DROPOUT = 768, 256, 0.3
"""As in MaChAmp (van der Goot et al. 2021), after Dozat and Manning 2017."""


class Biaffine(nn.Module):
    """Score pairs of vectors: x W y, with a constant 1 behind each of them."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, width + 1, width + 1))

    def forward(self, dependents: Tensor, heads: Tensor) -> Tensor:
        """Return (examples, outputs, dependents, heads) scores of two (examples, tokens, width) tensors."""
        left, right = (functional.pad(x, (0, 1), value=1.0) for x in (dependents, heads))
        return torch.einsum("bxi,oij,byj->boxy", left, self.weight, right)

    def of_pairs(self, dependents: Tensor, heads: Tensor) -> Tensor:
        """Return (pairs, outputs) scores of two (pairs, width) tensors, each vector with the one in its row."""
        left, right = (functional.pad(x, (0, 1), value=1.0) for x in (dependents, heads))
        return torch.einsum("ni,oij,nj->no", left, self.weight, right)


class Parser(EncoderHead):
    """An encoder with a tagger per column and, where there are relations, a parser."""

    def __init__(
        self, encoder: Any, width: int, label_sets: Mapping[str, Sequence[str]], relations: str
    ) -> None:
        """`encoder`: a bare model of transformers, of states of `width`. `label_sets`: the labels of each column;
        `relations` is the column of the tree's, all others are tagged."""
        super().__init__(encoder, label_sets)
        self.tags = {name: len(labels) for name, labels in label_sets.items() if name != relations}
        self.dropout = nn.Dropout(DROPOUT)
        self.taggers = nn.ModuleDict({name: nn.Linear(width, count) for name, count in self.tags.items()})
        self.root = nn.Parameter(torch.empty(width).normal_(0, 0.02))
        sizes = {"arc_dependent": ARC_WIDTH, "arc_head": ARC_WIDTH}
        sizes |= {"label_dependent": LABEL_WIDTH, "label_head": LABEL_WIDTH}
        self.projections = nn.ModuleDict({name: nn.Linear(width, size) for name, size in sizes.items()})
        self.arcs, self.labels = Biaffine(ARC_WIDTH, 1), Biaffine(LABEL_WIDTH, len(label_sets[relations]))

    def forward(self, owners: Tensor, root: Tensor, **batch: Tensor) -> Output:
        """Return the loss, if targets are given, and (examples, tokens, sum(tags) + 2 * tokens): the logits of all
        columns side by side, then of the heads, then the best relation to each of them, which training leaves out.

        owners: (examples, tokens), the place of the first token of each token's word, or IGNORED. root: (examples,),
        the place of the classification token. Targets, (examples, tokens) each, IGNORED where there is none: `heads`,
        the place of the head's first token; `relations`; the tags by the names of their columns."""
        targets = {name: batch.pop(name) for name in (*self.tags, "heads", "relations") if name in batch}
        states = self.encoder(**batch).last_hidden_state
        words = self._words(states, owners, root)
        tags = {name: tagger(words) for name, tagger in self.taggers.items()}
        vectors = {name: functional.elu(layer(words)) for name, layer in self.projections.items()}
        arcs = self.arcs(vectors["arc_dependent"], vectors["arc_head"])[:, 0]
        places = torch.arange(owners.shape[1], device=owners.device)
        may_head = (owners == places) | (places == root[:, None])
        arcs = arcs.masked_fill(~may_head[:, None], torch.finfo(arcs.dtype).min)
        pair = vectors["label_dependent"], vectors["label_head"]
        loss = self._loss(tags, arcs, pair, targets) if targets else None
        best = () if self.training else (self._best_labels(*pair, may_head).to(arcs.dtype),)
        return Output(loss, torch.cat([*tags.values(), arcs, *best], -1))

    def _best_labels(self, dependents: Tensor, heads: Tensor, may_head: Tensor) -> Tensor:
        """Return (examples, tokens, tokens): the best label of each word's relation to each possible head, elsewhere 0.
        Sentence by sentence, without the places between, which are most: a label's scores take half of a pass."""
        examples, tokens, _ = dependents.shape
        best = torch.zeros(examples, tokens, tokens, dtype=torch.long, device=dependents.device)
        for row, allowed in enumerate(may_head):
            at = allowed.nonzero()[:, 0]
            scores = self.labels(dependents[row, at][None], heads[row, at][None])
            best[row, at[:, None], at] = scores.argmax(1)[0]
        return best

    def _words(self, states: Tensor, owners: Tensor, root: Tensor) -> Tensor:
        """Return the mean of each word's tokens at its first token, and the root's vector at its place."""
        batch, tokens, width = states.shape
        inside = owners >= 0
        place = torch.where(inside, owners, tokens)  # what belongs to no word goes behind the row
        sums = states.new_zeros(batch, tokens + 1, width).scatter_add(
            1, place[..., None].expand_as(states), states
        )
        counts = states.new_zeros(batch, tokens + 1).scatter_add(1, place, torch.ones_like(states[..., 0]))
        words = (sums / counts.clamp(min=1)[..., None])[:, :tokens]
        at_root = torch.arange(tokens, device=root.device) == root[:, None]
        words = torch.where(at_root[..., None], self.root.to(words.dtype), words)
        mask = self.dropout(torch.ones_like(words[:, :1]))  # one mask for all words of a sentence
        return words * mask

    def _loss(
        self, tags: dict[str, Tensor], arcs: Tensor, pair: tuple[Tensor, Tensor], targets: dict[str, Tensor]
    ) -> Tensor:
        """Return the sum of the mean cross-entropies of all columns, of the heads, and of the labels at the true heads.
        pair: (examples, tokens, width), the labels' vectors of dependents and of heads."""
        losses = [
            functional.cross_entropy(
                logits.float().flatten(0, 1), targets[name].flatten(), ignore_index=IGNORED
            )
            for name, logits in tags.items()
        ]
        heads = targets["heads"]
        losses.append(
            functional.cross_entropy(arcs.float().flatten(0, 1), heads.flatten(), ignore_index=IGNORED)
        )
        example, word = (targets["relations"] != IGNORED).nonzero(as_tuple=True)
        dependents, of_heads = pair
        at_heads = self.labels.of_pairs(dependents[example, word], of_heads[example, heads[example, word]])
        losses.append(functional.cross_entropy(at_heads.float(), targets["relations"][example, word]))
        return torch.stack(losses).sum()
