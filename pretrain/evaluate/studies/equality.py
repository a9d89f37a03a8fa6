"""Check by hash that arms which must be equal are: the examples that they train on, the masks, the first weights.

What a run reads is a pure function of its settings, so it is hashed before anything is trained: batches spread evenly
over the run.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import Shares
from data_pipeline.loader.packing import separator_places
from pretrain.config.settings import RunConfig
from pretrain.preflight.check_run import Plan, check_run

if TYPE_CHECKING:
    from data_pipeline.loader.packing import PackedMicroBatch

BATCHES = 16
"""Batches of a run that are hashed, the first and the last among them."""
Hashes = dict[str, Any]
"""Kind (EQUALITIES) -> hash; of `weights`, tensor -> hash."""


def hashes_of(config: RunConfig, wanted: tuple[str, ...]) -> Hashes:
    """Return the hashes of the wanted kinds for the run that `config` describes, whose shards are prepared."""
    plans = check_run(config, 1)
    found: Hashes = {}
    if {"weights", "shared_weights"} & set(wanted):
        found["weights"] = _weights(plans[0])
    if set(wanted) - {"weights", "shared_weights"}:
        found |= _batches(plans)
    return found


def _weights(plan: Plan) -> dict[str, str]:
    model = plan.objective.fresh_model(plan.index.vocabulary)
    return {
        name: hashlib.sha256(parameter.detach().numpy().tobytes()).hexdigest()
        for name, parameter in model.named_parameters()
    }


def _batches(plans: list[Plan]) -> dict[str, str]:
    """Hash the examples of all phases in the order in which they are read; within a batch by the keys of their
    draws."""
    sums = {name: hashlib.sha256() for name in ("examples", "masks", "content", "content_masks")}
    for plan in plans:
        _add_batches(plan, plan.phase.config, sums)
    return {name: found.hexdigest() for name, found in sums.items()}


def _add_batches(plan: Plan, config: RunConfig, sums: dict[str, Any]) -> None:
    caps = plan.caps(plan.index.train, config)
    shares = Shares(plan.index, plan.order(config), caps, masking=plan.masking, separators=plan.separators)
    special = np.array([plan.index.vocabulary.cls, plan.index.vocabulary.sep])
    framed = config.data.separators == "period"  # as [SEP] would frame the segments
    steps = config.train.steps
    for batch in sorted(set(np.linspace(0, steps - 1, min(BATCHES, steps)).round().astype(int).tolist())):
        rows: list[tuple[int, dict[str, bytes]]] = []
        for packed in shares.read(batch).micro_batches:
            rows += zip(packed.keys.tolist(), _examples(packed, special, framed), strict=True)
        for _, parts in sorted(rows, key=lambda row: row[0]):
            for name, part in parts.items():
                sums[name].update(part)


def _examples(packed: "PackedMicroBatch", special: NDArray[np.int64], framed: bool) -> list[dict[str, bytes]]:
    """Return the parts of each example: `examples` is its text as it was, with segments and label; `masks` are the
    places, what is shown there and what is to be found; both again with tokens counted that are no [CLS] or [SEP], or,
    where examples are `framed` by other tokens, what is in the places of [SEP]."""
    text = packed.input_ids.copy()
    text[packed.masked_index] = packed.masked_ids
    is_content = ~np.isin(text, special)
    if framed:
        borders = packed.cu_seqlens.astype(np.int64)
        firsts = np.add.reduceat(packed.segment_ids == 0, borders[:-1])
        is_content[np.concatenate(separator_places(borders, firsts))] = False
    found = []
    for number, (start, stop) in enumerate(pairwise(packed.cu_seqlens.tolist())):
        own = (packed.masked_index >= start) & (packed.masked_index < stop)
        places, content = packed.masked_index[own], is_content[start:stop]
        label, wanted = packed.labels[number : number + 1], packed.masked_ids[own]
        counted = np.cumsum(content)[places - start]
        shown = packed.input_ids[places]
        found.append(
            {
                "examples": _bytes(text[start:stop], packed.segment_ids[start:stop], label),
                "masks": _bytes(places - start, shown, wanted),
                "content": _bytes(text[start:stop][content], label),
                "content_masks": _bytes(counted, shown, wanted),
            }
        )
    return found


def _bytes(*arrays: NDArray[np.integer]) -> bytes:
    """Join arrays, each behind its length."""
    return b"".join(len(a).to_bytes(8, "little") + np.asarray(a, np.int64).tobytes() for a in arrays)


def check_equal(
    hashes: Mapping[str, Hashes], equal: Mapping[str, Sequence[str]], seed: int, where: object
) -> dict[str, str]:
    """Return a short hash of each kind that is declared to be equal. Raises UserError, with the arms and a tensor, for
    one that is not. `hashes`: of each arm, by name; `equal`: kind -> the arms in which it must be the same."""
    said = {}
    for kind, (first, *others) in equal.items():
        for arm in others:
            if what := _difference(kind, hashes[first], hashes[arm]):
                raise UserError(
                    f"arms {first} and {arm} must have the same {kind}, and differ in {what} with seed {seed}",
                    where=where,
                    remedy=f"take {kind} out of `equal`, or from the arms what makes them differ",
                )
        said[kind] = _short(kind, [hashes[arm] for arm in equal[kind]])
    return said


def by_arms(equal: Mapping[str, Sequence[str]]) -> dict[tuple[str, ...], list[str]]:
    """Return the kinds that are the same in each group of arms, from the arms of each kind."""
    found: dict[tuple[str, ...], list[str]] = {}
    for kind, arms in equal.items():
        found.setdefault(tuple(arms), []).append(kind)
    return found


def _difference(kind: str, one: Hashes, other: Hashes) -> str:
    if kind == "shared_weights":
        both = one["weights"].keys() & other["weights"].keys()
        return next((name for name in sorted(both) if one["weights"][name] != other["weights"][name]), "")
    if kind == "weights":
        names = sorted(one[kind].keys() | other[kind].keys())
        return next((name for name in names if one[kind].get(name) != other[kind].get(name)), "")
    return "" if one[kind] == other[kind] else "it"


def _short(kind: str, hashes: Sequence[Hashes]) -> str:
    tables = [found["weights" if "weights" in kind else kind] for found in hashes]
    if isinstance(tables[0], str):
        return tables[0][:12]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return hashlib.sha256("".join(f"{n} {tables[0][n]}" for n in shared).encode()).hexdigest()[:12]
