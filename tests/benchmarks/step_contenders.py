"""A folder of shards and a contender's name in; training steps, as many as standard input asks for at a time, out.

    python -m tests.benchmarks.step_contenders ours SHARDS '{"layers": 4, ...}'

Each line of standard input is a number of steps; what they took is printed as JSON when they are done. With a second
number, the size of the vocabulary, they are profiled (step_profile.py). After the last line the process prints its peak
memory and ends. bench_step.py starts one such process for each contender and lets them take turns, so that a change of
the machine's load meets all of them.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.step_profile import StepProfile


class Ended(Exception):
    """Nobody asks for more steps."""


class Gate:
    """Called after every step of a training loop: holds it between the steps that were asked for."""

    def __init__(self) -> None:
        self._left, self._asked, self._tokens, self._started, self._waited = 0, 0, 0, 0.0, 0.0
        self._profile: StepProfile | None = None

    def open(self) -> None:
        """Waits for the next number of steps. Raises Ended where there is none."""
        line = sys.stdin.readline()
        if not line:
            raise Ended
        steps, *vocabulary = map(int, line.split())
        self._left = self._asked = steps
        self._profile = StepProfile(*vocabulary) if vocabulary else None
        self._tokens, self._started, self._waited = 0, time.perf_counter(), 0.0

    def __call__(self, tokens: int, waited: float = 0.0) -> None:
        """`waited`: seconds of the step in which it waited for data."""
        self._left -= 1
        self._tokens += tokens
        self._waited += waited
        if self._left == 0:
            seconds = time.perf_counter() - self._started
            figures = {"seconds": seconds, "tokens": self._tokens, "steps": self._asked}
            kinds = self._profile.milliseconds() if self._profile else {}
            answer(figures | {"waited": self._waited, "kinds": kinds})
            self.open()


def answer(figures: dict[str, Any]) -> None:
    """Tells the process that started this one."""
    print(f"@{json.dumps(figures)}", flush=True)


def peak_bytes() -> int:
    """The largest resident memory of this process. Not getrusage: what it says is inherited from the parent."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def ours(shards: str, sizes: dict[str, Any], gate: Gate) -> None:
    """`maskmill train` with one rank."""
    from rich.console import Console

    from launch.recipe import load_config
    from pretrain.distributed.watchdog import Watchdog
    from pretrain.monitoring.run_log import RunLog
    from pretrain.train import train

    step = RunLog.step

    def gated(self: RunLog, position: Any, counts: Any, lr: float) -> None:
        step(self, position, counts, lr)
        gate(counts.tokens, counts.waited)

    RunLog.step = gated  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        settings = [*run_settings(shards, sizes), f"run.dir={folder}/run"]
        config = load_config(sizes.get("recipe", "demo"), settings)
        train(config, Console(quiet=True), "benchmark", Watchdog(config.run))


def run_settings(shards: str, sizes: dict[str, Any]) -> list[str]:
    """The settings of our run, as a user would write them."""
    dropout = sizes["dropout"]
    return [
        f"train.shards={shards}",
        f"data.vocab={shards}",
        f"data.sequence_length={sizes['length']}",
        f"encoder.layers={sizes['layers']}",
        f"encoder.hidden={sizes['hidden']}",
        f"encoder.heads={max(1, sizes['hidden'] // 64)}",
        f"encoder.intermediate={4 * sizes['hidden']}",
        f"encoder.max_positions={sizes['length']}",
        f"encoder.dropout={dropout}",
        f"encoder.attention_dropout={dropout}",
        *([] if "recipe" in sizes else ["encoder.activation=gelu"]),
        f"train.global_batch={sizes['examples']}",
        f"train.micro_batch={sizes['examples']}",
        "train.steps=100000",
        "train.eval_every=0",
        "train.eval_examples=32",
        "train.checkpoint_every=0",
        "run.ranks=1",
        f"run.threads={sizes['threads']}",
        "optim.name=adamw",
        "optim.lr=1e-4",
        "monitor.tracker=none",
        *sizes.get("settings", []),
    ]


def transformers_trainer(shards: str, sizes: dict[str, Any], gate: Gate) -> None:
    """transformers' Trainer, as `trainer` has it."""
    import transformers

    class Turns(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            gate(0)

    with tempfile.TemporaryDirectory() as folder:
        settings = {"max_steps": 100_000, "learning_rate": 1e-4, "save_strategy": "no"}
        settings["bf16"] = "train.precision=bf16" in sizes.get("settings", [])
        trainer(shards, sizes, folder, settings, [Turns()]).train()


def trainer(
    shards: str, sizes: dict[str, Any], folder: str, settings: dict[str, Any], callbacks: Sequence[Any] = ()
) -> Any:
    """transformers' BertForPreTraining under its Trainer as it comes (fused AdamW, gradients clipped to 1), on the
    same batches as ours in the same order; its collator pads each batch to its longest example. `settings` are
    further TrainingArguments; `sizes` may have `heads` (one for 64 of the width else), `seed` (1 else) and, in place of
    BertForPreTraining, the `class` of a model and the fields of its `config`."""
    import torch
    import transformers

    torch.set_num_threads(sizes["threads"])
    transformers.set_seed(sizes.get("seed", 1))  # before the model is made; the Trainer's own comes after it
    kind = getattr(transformers, sizes.get("class", "BertForPreTraining"))
    fields = sizes.get("config") or {
        "num_hidden_layers": sizes["layers"],
        "hidden_size": sizes["hidden"],
        "num_attention_heads": sizes.get("heads", max(1, sizes["hidden"] // 64)),
        "intermediate_size": 4 * sizes["hidden"],
        "max_position_embeddings": sizes["length"],
        "hidden_dropout_prob": sizes["dropout"],
        "attention_probs_dropout_prob": sizes["dropout"],
        "initializer_range": sizes.get("initializer_range", 0.02),
    }
    config = kind.config_class(**fields)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=f"{shards}/tokenizer.json", pad_token="[PAD]", unk_token="[UNK]"
    )
    config.vocab_size = len(tokenizer)

    class Examples(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return trainer_examples(shards, sizes)

    arguments = transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=sizes["examples"],
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    return transformers.Trainer(
        kind(config),
        arguments,
        data_collator=transformers.DataCollatorForTokenClassification(tokenizer),
        train_dataset=Examples(),
        callbacks=list(callbacks),
    )


def trainer_examples(shards: str, sizes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The examples of our batches in their order, as lists that transformers' collator pads."""
    import numpy as np

    from data_pipeline.loader.loader import Shares, order_of
    from data_pipeline.loader.packing import caps_for
    from data_pipeline.shards.index import Index

    index = Index.load(shards)
    caps = caps_for(index.train, sizes["examples"], sizes["length"])
    shares = Shares(index, order_of(index, seed=sizes.get("seed", 1), global_batch=sizes["examples"]), caps)
    batch = 0
    while True:
        for packed in shares.read(batch).micro_batches:
            labels = np.full(len(packed.input_ids), -100)
            labels[packed.masked_index] = packed.masked_ids
            for number, (start, stop) in enumerate(
                zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], strict=True)
            ):
                yield {
                    "input_ids": packed.input_ids[start:stop].tolist(),
                    "token_type_ids": packed.segment_ids[start:stop].tolist(),
                    "labels": labels[start:stop].tolist(),
                    "next_sentence_label": int(packed.labels[number]),
                }
        batch += 1


def peer(shards: str, sizes: dict[str, Any], gate: Gate) -> None:
    """The class of transformers that the run's member leaves as, in a plain loop."""
    import torch

    from launch.recipe import load_config
    from pretrain.preflight.check_run import check_run
    from tests.benchmarks.family_peers import trained

    torch.set_num_threads(sizes["threads"])
    config = load_config(sizes["recipe"], [*run_settings(shards, sizes), "run.dir=none"])
    for tokens, _ in trained(check_run(config, 1)[0], config):
        gate(tokens)


CONTENDERS = {"ours": ours, "trainer": transformers_trainer, "peer": peer}


def main() -> None:
    name, shards, sizes = sys.argv[1:]
    gate = Gate()
    try:
        gate.open()
        CONTENDERS[name](shards, json.loads(sizes), gate)
    except Ended:
        answer({"peak": peak_bytes()})


if __name__ == "__main__":
    main()
