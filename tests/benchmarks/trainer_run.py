"""A folder of shards in; checkpoints of transformers' BertForPreTraining, trained by its Trainer, out.

    python -m tests.benchmarks.trainer_run SHARDS FOLDER '{"layers": 4, ...}' '{"max_steps": 300, ...}'

The sizes are those of step_contenders.py; what follows are TrainingArguments.
"""

import json
import sys

from tests.benchmarks.step_contenders import trainer


def main() -> None:
    shards, folder, sizes, settings = sys.argv[1:]
    trainer(shards, json.loads(sizes), folder, json.loads(settings)).train()


if __name__ == "__main__":
    main()
