"""ELECTRA in fp32 with batches cut in any way: the same samples lead to the same weights, one other elsewhere."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pretrain.config.encoder import EncoderSettings
from pretrain.model.batch import MicroBatch
from pretrain.model.vocabulary_losses import sample_words
from tests.factories.models import fresh_model

WORDS, MASK = 90, 4
TINY = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=40, dropout=0.0, attention_dropout=0.0,
    initializer_range=0.3,
)  # fmt: skip
STEPS, EXAMPLES = 4, 12
WHOLE = [range(EXAMPLES)]
CUTS = {
    "parts": [[5], [0, 1, 2, 3], [11, 10, 9, 8, 7, 6, 4]],
    "singles": [[number] for number in reversed(range(EXAMPLES))],
}
RATES = {"electra": 0.02, "electra_two_stage": 0.5}
"""Of SGD, which divides by no small gradient; ELECTRA weighs its discriminator's loss by 50."""
ROUNDING = 1e-5
"""Above what sums in another order change in so few steps."""


class Samples:
    """Stands in for the draw of words: each key gets the word that it got at its first draw."""

    def __init__(self) -> None:
        self.drawn: dict[int, int] = {}

    def __call__(self, hidden: Tensor, weight: Tensor, bias: Tensor, keys_R: Tensor, size: int) -> Tensor:
        fresh = sample_words(hidden, weight, bias, keys_R, size)
        pairs = zip(keys_R.tolist(), fresh.tolist(), strict=True)
        return torch.tensor([self.drawn.setdefault(key, word) for key, word in pairs])


def examples_of(step: int) -> list[tuple[list[int], dict[int, int]]]:
    """The examples of a step: 6 to 15 words, of which two are masked."""
    generator = torch.Generator().manual_seed(step)
    found = []
    for _ in range(EXAMPLES):
        length = int(torch.randint(6, 16, (), generator=generator))
        ids = [2, *torch.randint(5, WORDS, (length - 2,), generator=generator).tolist(), 3]
        places = sorted((torch.randperm(length - 2, generator=generator)[:2] + 1).tolist())
        masked = {place: ids[place] for place in places}
        found.append(([MASK if place in masked else word for place, word in enumerate(ids)], masked))
    return found


def trained(
    name: str, cut: Sequence[Sequence[int]], samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Tensor]:
    """The weights after STEPS updates whose batches are cut in this way."""
    monkeypatch.setattr("pretrain.objectives.electra.sample_words", samples)
    model = fresh_model(name, TINY, WORDS, mask_id=MASK)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[name])
    for step in range(STEPS):
        examples = examples_of(step)
        totals = {"mlm": 2 * EXAMPLES, "rtd": sum(len(ids) for ids, _ in examples)}
        for numbers in cut:
            texts, masked = zip(*(examples[number] for number in numbers), strict=True)
            batch = MicroBatch.from_lists(texts, masked=masked)
            terms, _ = model(replace(batch, keys=torch.tensor([*numbers]) + EXAMPLES * step))
            sum(term.weight * term.sum / totals[term_name] for term_name, term in terms.items()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {parameter: values.detach() for parameter, values in model.named_parameters()}


def distance(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    return max(float((one[name] - two[name]).abs().max()) for name in one)


@pytest.mark.parametrize("name", ["electra", "electra_two_stage"])
def test_the_same_samples_lead_to_the_same_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples()
    whole = trained(name, WHOLE, samples, monkeypatch)
    assert len(samples.drawn) == 2 * EXAMPLES * STEPS
    for cut in CUTS.values():
        assert distance(whole, trained(name, cut, samples, monkeypatch)) < ROUNDING
    assert len(samples.drawn) == 2 * EXAMPLES * STEPS, "a cut has drawn by other keys"


@pytest.mark.parametrize("name", ["electra", "electra_two_stage"])
def test_one_other_sample_leads_elsewhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that weights at two numbers of ranks are equal up to the first draw that rounding turns, and no further."""
    samples = Samples()
    whole = trained(name, WHOLE, samples, monkeypatch)
    key, word = next(iter(samples.drawn.items()))
    samples.drawn[key] = 5 + (word + 1) % (WORDS - 5)
    assert distance(whole, trained(name, WHOLE, samples, monkeypatch)) > 100 * ROUNDING
