"""Predict tags of words and dependency trees: linear taggers and deep biaffine attention on an encoder's last layer.

Everything is per token, at the first token of each word, so that a batch has one shape. The classification token
stands for the root."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pretrain.evaluate.downstream.heads.saved import HEAD_FILE, Output, load_beside, save_beside
from pretrain.evaluate.downstream.inputs.batches import IGNORED

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


class Parser(nn.Module):
    """An encoder with a tagger per column and, where there are relations, a parser."""

    base_model_prefix = "encoder"

    def __init__(
        self, encoder: Any, width: int, label_sets: Mapping[str, Sequence[str]], relations: str
    ) -> None:
        """`encoder`: a bare model of transformers, of states of `width`. `label_sets`: the labels of each column;
        `relations` is the column of the tree's, all others are tagged."""
        super().__init__()
        self.encoder, self.label_sets = encoder, label_sets
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

    def save_pretrained(self, folder: Path) -> None:
        """Write the encoder as a folder of its own, and the decoders with their labels beside it."""
        self.encoder.save_pretrained(folder)
        save_beside(self, folder / HEAD_FILE, self.label_sets, without="encoder.")

    def load_decoders(self, folder: Path) -> "Parser":
        """Read the decoders that `save_pretrained` wrote. Raises UserError where there are none of this shape."""
        load_beside(self, folder / HEAD_FILE, without="encoder.")
        return self

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


def best_tree(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the heads of the tree of the highest sum of scores whose root has one child: 0 for that child, else the
    head's number from 1. scores: (words, words + 1), of each word's heads, the root first.

    Chu-Liu and Edmonds' algorithm, by ufal.chu_liu_edmonds, where the best heads of all words are no such tree
    already."""
    from ufal.chu_liu_edmonds import chu_liu_edmonds  # an extra, as are the metrics of trees

    count = len(scores)
    known = np.full((count + 1, count + 1), -np.inf)
    known[1:] = scores
    np.fill_diagonal(known, -np.inf)
    heads = known[1:].argmax(1)
    if (heads == 0).sum() == 1 and _is_tree(heads):
        return heads
    finite = known[np.isfinite(known)]
    # no two children of the root where one will do
    known[1:, 0] -= (finite.max() - finite.min() + 1) * (count + 1)
    known[~np.isfinite(known)] = np.nan  # no edge
    return np.array(chu_liu_edmonds(known)[0][1:], np.int64)


def _is_tree(heads: NDArray[Any]) -> bool:
    """Return whether every word leads to the root."""
    good: set[int] = {0}
    for word in range(1, len(heads) + 1):
        path, at = [], word
        while at not in good:
            if at in path:
                return False
            path.append(at)
            at = int(heads[at - 1])
        good |= set(path)
    return True
