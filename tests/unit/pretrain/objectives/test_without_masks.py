"""Micro-batches and steps without a masked token: a finite loss, and the update of the other terms alone."""

from dataclasses import replace

import pytest
import torch

from pretrain.model.batch import MicroBatch
from pretrain.objectives.base import Model
from pretrain.objectives.registry import OBJECTIVES
from tests.unit.pretrain.objectives.test_objectives_registry import cut, gradients, model

UNMASKED = ([2, 5, 6, 3, 9, 3], [2, 7, 3, 8, 10, 11, 3])


def unmasked(*numbers: int) -> MicroBatch:
    """Examples without a masked token, as shards of another program may hold them."""
    sequences = [UNMASKED[i] for i in numbers]
    batch = MicroBatch.from_lists(
        sequences, [3] * len(numbers), [{}] * len(numbers), [i % 2 for i in numbers]
    )
    return replace(batch, keys=torch.tensor([10 + i for i in numbers]))


def counted(module: Model, batches: list[MicroBatch]) -> dict[str, int]:
    """What each term is divided by, as pretrain/train.py has it."""
    found = [module(batch)[0] for batch in batches]
    return {name: max(sum(terms[name].count.item() for terms in found), 1) for name in found[0]}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_without_masks_is_the_step_of_the_other_terms(name: str) -> None:
    module = model(name).double()
    batch = unmasked(0, 1)
    terms, _ = module(batch)
    left = {term: found for term, found in terms.items() if found.count.item()}
    for found in terms.values():
        assert torch.isfinite(found.sum)
        assert found in left.values() or found.sum.item() == 0
    assert not {"mlm", "sbo", "plm"} & left.keys()
    whole = gradients(module, [batch], counted(module, [batch]))
    module.zero_grad()
    terms, _ = module(batch)
    alone = [torch.zeros_like(p) for p in module.parameters()]
    if left:
        loss = sum(terms[n].weight * terms[n].sum / terms[n].count for n in left)
        found_gradients = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
        alone = [zero if g is None else g for zero, g in zip(alone, found_gradients, strict=True)]
    for a, b in zip(whole, alone, strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_micro_batch_without_masks_takes_its_part_in_the_step(name: str) -> None:
    module = model(name).double()
    apart = [cut(0, 1), unmasked(0, 1), cut(2, 3), unmasked(1)]
    together = [cut(0, 1, 2, 3), unmasked(0, 1), unmasked(1)]
    totals = counted(module, apart)
    assert totals == counted(module, together)
    for a, b in zip(gradients(module, apart, totals), gradients(module, together, totals), strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
