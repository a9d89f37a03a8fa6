"""Published fine-tuning settings, and what they change for a task."""

from typing import Any

RECIPES: dict[str, dict[str, Any]] = {
    "bert": {},
    "small": {"lr": 1e-4, "epochs": 4.0},
    "bert-grid": {"tune_share": 0.1, "grid": {"lr": [5e-5, 4e-5, 3e-5, 2e-5]}},
    "small-grid": {
        "epochs": 4.0,
        "tune_share": 0.1,
        "grid": {"lr": [3e-4, 1e-4, 5e-5, 3e-5], "batch": [8, 16, 32, 64, 128]},
    },
    "electra": {"lr": 1e-4, "layer_decay": 0.8},
    "machamp": {
        "lr": 3.8e-5,
        "head_lr": 1e-4,
        "epochs": 20.0,
        "head_epochs": 1.0,
        "schedule": "slanted",
        "warmup": 0.2,
        "betas": [0.9, 0.99],
        "tune_share": 0.1,
    },
}
"""What each recipe changes. The grids are those of the papers (Devlin et al. 2019, section 4.1; Turc et al. 2019),
which choose on dev; here a tenth of the training examples chooses. bert and small have one rate of them, given
beforehand. MaChAmp's encoder has 0.38 of its heads' rate. Its AdamW does not correct the bias of the moments, its
dropout is 0.3 on the encoder's output alone, its tuning examples are a file's: not so here."""
SCORED_ALONE: dict[str, Any] = {"epochs": 0.0, "tune_share": 0.0, "grid": {}}
"""What every recipe changes for AX, which has no training examples."""
LONG: dict[str, Any] = {"max_length": 384}
"""What recipes change for questions, whose texts are long (google-research/bert, run_squad.py)."""
TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "squad1": LONG,
    "squad2": {**LONG, "epochs": 2.0, "batch": 48},
    "questions": LONG,
    "swag": {"batch": 16},
    "ax": SCORED_ALONE,
    "ud": {"max_length": 256, "epochs": 20.0, "lr": 3.8e-5, "head_lr": 1e-3},
}
"""What most recipes change for a task (Devlin et al. 2019, sections 4.2 to 4.4). Treebanks: van der Goot et al. 2021
(MaChAmp), whose heads learn at 1e-4 but whose schedule starts with an epoch of the heads alone; here they have ten
times that rate instead."""
OF_TASKS: dict[str, dict[str, dict[str, Any]]] = {
    "bert": TASK_DEFAULTS | {"swag": {**TASK_DEFAULTS["swag"], "lr": 2e-5}},
    "bert-grid": TASK_DEFAULTS,
    "small": TASK_DEFAULTS | {"ud": {**TASK_DEFAULTS["ud"], "lr": 1e-4}},
    "small-grid": TASK_DEFAULTS,
    "electra": TASK_DEFAULTS
    | {
        "rte": {"epochs": 10.0},
        "stsb": {"epochs": 10.0},
        "squad1": {"max_length": 512, "epochs": 2.0},
        "squad2": {"max_length": 512, "epochs": 2.0},
        "questions": {"max_length": 512},
    },
    "machamp": {"ax": SCORED_ALONE, **dict.fromkeys(("squad1", "squad2", "questions"), LONG)},
}
"""What a recipe changes for a single task."""
FROZEN = {
    "lr": 1e-3,
    "epochs": 20.0,
    "schedule": "constant",
    "warmup": 0.0,
    "weight_decay": 0.0,
    "dropout": 0.5,
    "tune_share": 0.1,
    "patience": 3,
    "head_lr": 0.0,
    "head_epochs": 0.0,
    "betas": [0.9, 0.999],
    "layer_decay": 1.0,
    "grid": {},
}
"""What every recipe changes where features of a frozen encoder are read: Adam at 1e-3 with dropout of the BiLSTM's
input, until three epochs bring nothing on a tenth of the training examples. What a recipe has for the layers of an
encoder that learns, or tries in a grid, is not for these."""
