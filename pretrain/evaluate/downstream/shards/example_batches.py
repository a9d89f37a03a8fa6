"""Give examples of prepared shards to an encoder as transformers' models take them, and judge its answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import held_out_examples, shards_vocabulary
from data_pipeline.loader.packing import Separators, separators_of
from data_pipeline.records import Examples
from data_pipeline.shards.index import Index
from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.inputs.builder import Input, padded, token_slice
from pretrain.evaluate.downstream.tasks.untrained.likelihood import batches_by_cost, refuse_discriminator

READ = 4096
"""Examples in memory at a time."""


@dataclass(frozen=True)
class Batch:
    """Examples as a model takes them."""

    inputs: dict[str, torch.Tensor]
    """By the names of transformers' arguments, (examples, longest)."""
    owners: torch.Tensor
    """(R,) the row of each masked token, and..."""
    places: torch.Tensor
    """(R,) its column."""
    starts: NDArray[np.int64]
    """Of each example, the column of its first token."""


class ExampleBatches:
    """Make batches for one encoder."""

    def __init__(self, encoder: Encoder, device: torch.device) -> None:
        self.builder, self.first_position = encoder.builder(encoder.max_positions), encoder.first_position
        self.device = device

    def batch(self, examples: Examples, segment_ids: NDArray[np.int64] | None = None) -> Batch:
        """Return the batch of these examples; `segment_ids` in place of their own."""
        segments = segments_of(examples) if segment_ids is None else segment_ids
        borders = list(pairwise(examples.offsets.tolist()))
        rows = [Input(examples.tokens[a:b].tolist(), segments[a:b].tolist()) for a, b in borders]
        arrays = padded(rows, self.builder)
        longest, left = arrays["input_ids"].shape[1], self.builder.left_padded
        starts = np.array([token_slice(b - a, longest, left).start for a, b in borders])
        owners = np.repeat(np.arange(len(rows)), np.diff(examples.masked_offsets))
        places = starts[owners] + examples.masked_positions.astype(np.int64)
        if self.first_position:  # or transformers takes a random word that is the padding token for padding
            arrays["position_ids"] = np.tile(self.first_position + np.arange(longest), (len(rows), 1))
        if examples.positions is not None:
            arrays["position_ids"] = np.zeros((len(rows), longest), np.int64)
            for row, (a, b) in enumerate(borders):
                own = self.first_position + examples.positions[a:b].astype(np.int64)
                arrays["position_ids"][row, starts[row] : starts[row] + b - a] = own
        inputs = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        index, columns = (torch.from_numpy(found).to(self.device) for found in (owners, places))
        return Batch(inputs, index, columns, starts)


def _kind_of(encoder: Encoder) -> str:
    """Return which of transformers' classes has all heads that the folder has."""
    refuse_discriminator(encoder)
    architecture = str((encoder.config.architectures or [""])[0])
    return "ForPreTraining" if "ForPreTraining" in architecture else "ForMaskedLM"


def with_heads(encoder: Encoder, seed: int, device: torch.device) -> PreTrainedModel:
    """Return the encoder's model with all heads that the folder has, on the device."""
    model = encoder.load(_kind_of(encoder), seed, has_head=True)
    model.to(device)  # type: ignore[arg-type]  # its decorator loses the type
    return model


def masked_logits(output: Any) -> torch.Tensor:
    """Return the logits of words in a model's output, by either of their names in transformers."""
    return output.logits if hasattr(output, "logits") else output.prediction_logits


def pair_logits(output: Any) -> torch.Tensor | None:
    """Return the logits of pairs in a model's output, if it has a head for them."""
    names = (name for name in ("seq_relationship_logits", "sop_logits") if hasattr(output, name))
    return next((getattr(output, name) for name in names), None)


def own_separators(encoder: Encoder, index: Index) -> Separators | None:
    """Return what gives the examples the separators that the encoder was trained on. Raises UserError for an encoder
    of another vocabulary than the shards' or too few positions."""
    tokens = shards_vocabulary(index).tokens
    own = encoder.tokenizer.get_vocab()
    other = next((number for number, token in enumerate(tokens) if own.get(token) != number), None)
    if other is not None:
        raise UserError(
            f"has another vocabulary than {index.folder}: its token {tokens[other]!r} is {own.get(tokens[other])},"
            f" not {other}",
            where=encoder.folder,
            remedy="prepare the text with the encoder's own vocabulary (data.vocab=FOLDER)",
        )
    if index.held_out.max_tokens > encoder.max_positions:
        raise UserError(
            f"has positions for {encoder.max_positions} tokens",
            where=encoder.folder,
            expected=f"{index.held_out.max_tokens}, the longest example of {index.folder}",
        )
    return separators_of(encoder.input_format, index, tokens)


def held_out_batches(
    index: Index, chosen: NDArray[np.int64], separators: Separators | None, tokens: int
) -> Iterator[Examples]:
    """Yield the chosen held-out examples, of near lengths together, about so many tokens at a time."""
    for start in range(0, index.held_out.examples, READ):
        stop = min(start + READ, index.held_out.examples)
        own = chosen[(chosen >= start) & (chosen < stop)]
        if len(own):
            examples = held_out_examples(index, start, stop, separators).take(own - start)
            for batch in batches_by_cost(examples.lengths.tolist(), tokens):
                yield examples.take(np.array(batch))


def segments_of(examples: Examples) -> NDArray[np.int64]:
    """Return the segment of each token."""
    if examples.segment_ids is not None:
        return examples.segment_ids.astype(np.int64)
    first = np.repeat(examples.offsets[:-1] + examples.first_lengths, examples.lengths)
    return (np.arange(len(examples.tokens)) >= first).astype(np.int64)


def judged(logits: torch.Tensor, targets: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the cross-entropy of each row, and whether its likeliest answer is right."""
    wanted = torch.from_numpy(targets).to(logits.device)
    losses = torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="none")
    return losses.double().cpu().numpy(), (logits.argmax(-1) == wanted).cpu().numpy()
