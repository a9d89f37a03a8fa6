"""Choose the tags of a sentence together: a linear-chain conditional random field over a tagger's scores (Lafferty et
al. 2001; over neural scores Lample et al. 2016, section 2.2)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pretrain.evaluate.downstream.heads.saved import Output, load_beside, save_beside
from pretrain.evaluate.downstream.inputs.batches import IGNORED

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
