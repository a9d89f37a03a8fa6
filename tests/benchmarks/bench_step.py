"""One training step, ours (packed) against transformers' BertForPreTraining (padded), on the same batch.

    python tests/benchmarks/bench_step.py --layers 4 --hidden 256 --examples 32 --threads 2

Prints real tokens (padding not counted) a second for both, in one process, and their ratio. Both run forward,
backward and fused AdamW in fp32, with the same dropout; rounds of the two alternate, so that a change of the
machine's load meets both, and the median round counts.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import transformers
from torch import Tensor

from pretrain.batch import MicroBatch
from pretrain.config import EncoderSettings
from pretrain.encoder.initialize import without_padding
from pretrain.export.names import ACTIVATIONS, CONFIG, to_hugging_face
from pretrain.objectives import load
from pretrain.objectives.base import Model, build

Step = Callable[[], Tensor]


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    settings = EncoderSettings(
        layers=arguments.layers,
        hidden=arguments.hidden,
        heads=max(1, arguments.hidden // 64),
        intermediate=4 * arguments.hidden,
        dropout=arguments.dropout,
        attention_dropout=arguments.dropout,
        max_positions=max(arguments.lengths),
    )
    batch = random_batch(arguments)
    ours = build(load("bert"), settings, arguments.vocabulary)
    theirs = transformers_model(ours, settings, arguments.vocabulary)
    steps = {"ours, packed": packed_step(ours, batch), "transformers, padded": padded_step(theirs, batch)}
    if arguments.dropout == 0:
        check_equal_losses(steps)
    report(steps, batch, arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--lengths", type=int, nargs=2, default=[30, 128], metavar=("SHORTEST", "LONGEST"))
    parser.add_argument("--dropout", type=float, default=0.1, help="of hidden states and of attention")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


def random_batch(arguments: argparse.Namespace) -> MicroBatch:
    """Random ids; lengths uniform between the two bounds, which both occur; 15 % masked, at most 20 in 128."""
    draws = np.random.RandomState(0)
    shortest, longest = arguments.lengths
    lengths = [shortest, longest, *draws.randint(shortest, longest + 1, max(0, arguments.examples - 2))]
    lengths = [int(n) for n in lengths[: arguments.examples]]
    sequences = [draws.randint(5, arguments.vocabulary, n).tolist() for n in lengths]
    masked = [
        dict.fromkeys(sorted(draws.permutation(np.arange(1, n - 1))[: max(1, round(0.15 * n))].tolist()), 7)
        for n in lengths
    ]
    return MicroBatch.from_lists(
        sequences, [n // 2 for n in lengths], masked, draws.randint(0, 2, len(lengths)).tolist()
    )


def transformers_model(
    ours: Model, settings: EncoderSettings, vocabulary: int
) -> transformers.PreTrainedModel:
    """BertForPreTraining with our weights."""
    config = transformers.BertConfig(
        **{theirs: getattr(settings, mine) for mine, theirs in CONFIG.items()},
        vocab_size=vocabulary,
        hidden_act=ACTIVATIONS[settings.activation],
    )
    model = transformers.BertForPreTraining(config)
    state = without_padding(ours, dict(ours.named_parameters()))
    model.load_state_dict({to_hugging_face(name): p for name, p in state.items()}, strict=False)
    return model.train()


def packed_step(model: Model, batch: MicroBatch) -> Step:
    def loss() -> Tensor:
        terms, _ = model(replace(batch))  # a new batch each time: its tile plan is part of the work
        return torch.stack([t.weight * t.sum / t.count for t in terms.values()]).sum()

    return training_step(model, loss)


def padded_step(model: transformers.PreTrainedModel, batch: MicroBatch) -> Step:
    longest = max(batch.lengths)
    shown = torch.arange(longest)[None, :] < torch.tensor(batch.lengths)[:, None]
    input_ids, segment_ids = (
        torch.zeros(shown.shape, dtype=torch.int64),
        torch.zeros(shown.shape, dtype=torch.int64),
    )
    input_ids[shown], segment_ids[shown] = batch.input_ids, batch.segment_ids
    targets = torch.full((batch.tokens,), -100)
    targets[batch.masked_index] = batch.masked_ids
    labels = torch.full(shown.shape, -100)
    labels[shown] = targets
    columns = {"input_ids": input_ids, "token_type_ids": segment_ids, "attention_mask": shown.long()}

    def loss() -> Tensor:
        return model(**columns, labels=labels, next_sentence_label=batch.labels).loss

    return training_step(model, loss)


def training_step(model: torch.nn.Module, loss_of: Step) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> Tensor:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def check_equal_losses(steps: dict[str, Step]) -> None:
    losses = [step().item() for step in steps.values()]
    assert abs(losses[0] - losses[1]) < 1e-4 * losses[1], losses


def report(steps: dict[str, Step], batch: MicroBatch, arguments: argparse.Namespace) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(arguments.rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if round_ > 0:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    padding = 1 - batch.tokens / (len(batch.lengths) * max(batch.lengths))
    print(
        f"{arguments.layers} layers x {arguments.hidden}, {len(batch.lengths)} examples, {batch.tokens:,} tokens"
        f" ({padding:.0%} padding when padded), dropout {arguments.dropout}, {arguments.threads} threads"
    )
    slowest = max(medians.values())
    for name, median in medians.items():
        print(
            f"  {name:22s} {median * 1e3:8.0f} ms {batch.tokens / median:8,.0f} tokens/s {slowest / median:6.2f}x"
        )


if __name__ == "__main__":
    main()
