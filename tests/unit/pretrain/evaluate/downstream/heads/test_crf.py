"""The CRF: its sums and its best tags are those found by writing out every sequence of tags."""

from itertools import pairwise, product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from pretrain.tasks.heads import Crf, CrfTagger, may_follow
from pretrain.tasks.inputs import IGNORED

TAGS = ("B-LOC", "B-PER", "I-PER", "O")
LENGTHS = torch.tensor([4, 1, 3])


@pytest.fixture
def crf() -> Crf:
    torch.manual_seed(0)
    one = Crf(TAGS)
    for weight in one.parameters():
        nn.init.normal_(weight)
    return one


def sequences(crf: Crf, scores: Tensor) -> dict[tuple[int, ...], float]:
    """The score of every sequence of tags that BIO2 allows."""
    found = {}
    for tags in product(range(len(TAGS)), repeat=len(scores)):
        names = ["O", *(TAGS[tag] for tag in tags)]
        if not all(may_follow(a, b) for a, b in pairwise(names)):
            continue
        total = crf.start[tags[0]] + crf.end[tags[-1]] + sum(s[t] for s, t in zip(scores, tags, strict=True))
        total = total + sum(crf.between[a, b] for a, b in pairwise(tags))
        found[tags] = total.item()
    return found


def test_loss_and_best_tags_are_those_of_all_sequences_written_out(crf: Crf) -> None:
    scores = torch.randn(3, 4, len(TAGS), generator=torch.Generator().manual_seed(1))
    tags = torch.tensor([[1, 2, 3, 0], [3, 0, 0, 0], [0, 1, 2, 3]])
    losses, best = [], crf.best(scores, LENGTHS).tolist()
    for row, length in enumerate(LENGTHS.tolist()):
        every = sequences(crf, scores[row, :length])
        total = torch.logsumexp(torch.tensor(list(every.values())), 0)
        losses.append(float(total) - every[tuple(tags[row, :length].tolist())])
        assert tuple(best[row][:length]) == max(every, key=every.__getitem__)
    expected = sum(losses) / int(LENGTHS.sum())
    assert crf.loss(scores, tags, LENGTHS).item() == pytest.approx(expected, abs=1e-5)


def test_what_is_behind_a_sentence_is_not_read(crf: Crf) -> None:
    scores = torch.randn(3, 4, len(TAGS), generator=torch.Generator().manual_seed(1))
    tags = torch.tensor([[1, 2, 3, 0], [3, 0, 0, 0], [0, 1, 2, 3]])
    inside = torch.arange(4) < LENGTHS[:, None]
    other = torch.where(inside[..., None], scores, torch.full_like(scores, 99.0))
    assert torch.equal(crf.loss(scores, tags, LENGTHS), crf.loss(other, tags * inside, LENGTHS))
    assert torch.equal(crf.best(scores, LENGTHS)[inside], crf.best(other, LENGTHS)[inside])


def test_the_best_tags_are_valid_bio2_whatever_the_scores(crf: Crf) -> None:
    scores = 20 * torch.randn(50, 6, len(TAGS), generator=torch.Generator().manual_seed(2))
    for tags in crf.best(scores, torch.full((50,), 6)).tolist():
        names = ["O", *(TAGS[tag] for tag in tags)]
        assert all(may_follow(a, b) for a, b in pairwise(names))


class Scores(nn.Module):
    """A tagger that answers what it is given."""

    base_model_prefix = ""

    def forward(self, scores: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=scores)


def test_tags_stand_at_the_first_tokens_and_do_not_depend_on_the_targets() -> None:
    torch.manual_seed(0)
    model = CrfTagger(Scores(), TAGS).eval()
    words = torch.tensor([[0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]).bool()
    scores = torch.randn(3, 6, len(TAGS))
    labels = torch.where(words, 3, IGNORED)
    found = model(labels, scores=scores).logits
    assert torch.equal(found.sum(-1), words.float())
    assert torch.equal(found, model(torch.where(words, 0, IGNORED), scores=scores).logits)
    best = model.crf.best(scores[0][words[0]][None], torch.tensor([3]))[0]
    assert torch.equal(found[0][words[0]].argmax(-1), best)


def test_its_loss_is_that_of_the_words_alone() -> None:
    torch.manual_seed(0)
    model = CrfTagger(Scores(), TAGS).train()
    labels = torch.tensor([[IGNORED, 1, IGNORED, 2, 3, IGNORED], [IGNORED] * 6])
    scores = torch.randn(2, 6, len(TAGS))
    alone = model.crf.loss(scores[:1, [1, 3, 4]], torch.tensor([[1, 2, 3]]), torch.tensor([3]))
    assert torch.allclose(model(labels, scores=scores).loss, alone)
