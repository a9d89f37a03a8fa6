"""Define how an encoder is fine-tuned and scored: the settings of `maskmill evaluate`, and recipes of them.

The settings of a task are the defaults, what a recipe changes, what it changes for this task and for features of a
frozen encoder, and what the user states, the later before the earlier. They are typed and documented at their fields.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from data_pipeline.errors import UserError, one_error
from data_pipeline.fields import Rule, broken, setting, wrong_values

# List published fine-tuning settings, and what they change for a task.


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


# Define the settings, and check their values.

FEATURES = ("embeddings", "second_to_last", "last", "sum_last_4", "concat_last_4", "sum_all")
"""Values of features."""


@dataclass
class EvaluationSettings:
    recipe: str = setting("bert", one_of=tuple(RECIPES))
    """Published fine-tuning settings to start from: bert (Devlin et al. 2019, section 4.1), small (for encoders as
    small as BERT-Mini: Turc et al. 2019), bert-grid and small-grid (the same with the papers' grids), electra (Clark et
    al. 2020, appendix B: layer-wise decay) or machamp (van der Goot et al. 2021: the head alone first, slanted
    triangles)."""
    epochs: float = setting(3.0, at_least=0)
    """Passes over the training examples; 0: the model's own head of an earlier fine-tuning is scored."""
    batch: int = setting(32, at_least=1)
    """Training examples per update."""
    lr: float = setting(5e-5, above=0, below=1)
    """Peak learning rate of the head and, without layer_decay, of all weights."""
    head_lr: float = setting(0.0, at_least=0, below=1)
    """Peak learning rate of the head; 0: lr."""
    head_epochs: float = setting(0.0, at_least=0)
    """Of the epochs, how many at the beginning train the head alone, under a schedule of their own."""
    schedule: str = setting("linear", one_of=("linear", "constant", "slanted"))
    """After the warm-up: linear (straight down to 0), constant, or slanted: down to a 32nd of the rate, from which the
    warm-up rises too (Howard and Ruder 2018, section 3.2)."""
    warmup: float = setting(0.1, at_least=0, below=1)
    """Share of the updates over which the rate rises from 0."""
    weight_decay: float = setting(0.01, at_least=0)
    """AdamW's decay of the matrices; biases and normalization have none."""
    betas: list[float] = setting([0.9, 0.999], entries=2, at_least=0, below=1)
    """AdamW's betas."""
    eps: float = setting(1e-6, above=0)
    """AdamW's epsilon."""
    clip: float = setting(1.0, at_least=0)
    """Largest global gradient norm; 0: no clipping."""
    layer_decay: float = setting(1.0, above=0, at_most=1)
    """Factor of the rate from each layer to the one below it: layer i of L has lr * layer_decay ** (L + 1 - i), the
    embeddings lr * layer_decay ** (L + 2), as ELECTRA's code does."""
    dropout: float = setting(0.1, at_least=0, below=1, also=(-1,))
    """Dropout while fine-tuning, of all kinds; -1: those in the encoder's config.json."""
    features: str = setting("", one_of=("", *FEATURES))
    """Tags of words from a frozen encoder: which hidden states a two-layer BiLSTM reads: embeddings, second_to_last,
    last, sum_last_4, concat_last_4 or sum_all (Devlin et al. 2019, Table 7). Empty: the encoder is fine-tuned."""
    crf: bool = False
    """Tags of words: choose those of a sentence together, by a linear-chain CRF over the tagger's scores."""
    bilstm: bool = False
    """Texts: classify by what a two-layer BiLSTM on the encoder ends with, both trained together (Devlin et al. 2019,
    section 5.1)."""
    max_length: int = setting(128, at_least=8)
    """Longest input in tokens; longer ones are cut. At most what the encoder has positions for."""
    tune_share: float = setting(0.0, at_least=0, below=1)
    """Share of the training examples kept to choose the best epoch by; 0: the last epoch is scored. The scored examples
    are never used for it."""
    grid: dict[str, list[float]] = setting({})
    """Values to choose among by the best epoch on the tuning examples, every combination trained with every seed:
    grid.lr=[5e-5,3e-5] grid.batch=[16,32]. Needs tune_share."""
    restarts: int = setting(1, at_least=1)
    """Trainings of every seed and combination, each with another new head and another order of the examples, of which
    the best on the tuning examples is scored (Devlin et al. 2019, section 4.1, for small sets). Above 1: needs
    tune_share."""
    patience: int = setting(0, at_least=0)
    """With tune_share: stop after this many epochs without a better one; 0: train all epochs."""
    by_epoch: bool = False
    """Score the examples after each epoch as well: curves in result.json. Nothing is chosen by them."""
    train_examples: float = setting(0, at_least=0)
    """Train on this many examples, drawn by the seed; below 1: on this share of them; 0: all."""
    carve: float = setting(0.0, at_least=0, below=1)
    """Where a task's folder has no training file: train on this share of its dev file and score the rest of it, the
    same rows for every seed and encoder."""
    null_threshold: str = "0"
    """Questions that may have no answer: none is given where its odds are above this number, a difference of two sums
    of logits; tune: the number with the best F1 on the tuning examples of tune_share."""
    test: bool = False
    """Score the test file beside the dev file, where a task is published with one that has its labels. Nothing is
    chosen by either."""
    class_order: list[str] = setting([])
    """With epochs=0: the class of each output of a model that was fine-tuned before, in the order of the outputs, where
    its config.json does not name them, or names them otherwise; empty: its names, or, where it has none, the order
    that is usual for the task, which a line states."""
    part: float = setting(1.0, above=0, at_most=1)
    """Without training: score this share of BLiMP's sets each, of the held-out examples or of the text's sentences,
    evenly spaced; 1: all."""
    text: str = ""
    """Own files: column of the text; empty: text, sentence, sentence1 or premise, whichever is there."""
    second_text: str = ""
    """Own files: column of the second text of a pair; empty: text2, sentence2 or hypothesis, if there is one."""
    label: str = ""
    """Own files: column of the label; empty: label, score or target, whichever is there."""
    labels: str = setting("auto", one_of=("auto", "classes", "numbers"))
    """Own files: predict classes or numbers; auto: numbers where all labels are numbers and more than twenty differ."""
    precision: str = setting("auto", one_of=("auto", "fp32", "bf16"))
    """fp32 or bf16; auto: bf16 on CUDA where a model is fine-tuned, fp32 without training and on CPU."""
    threads: int = setting(0, at_least=0)
    """CPU threads; 0: all cores."""


TUNE = "tune"
"""Value of null_threshold: chosen on the tuning examples."""
GRID = ("lr", "batch", "epochs", "head_lr", "warmup", "weight_decay", "layer_decay", "dropout")
"""Settings that a grid can have values of: those of the training, not of the examples."""
RUNTIME = {"precision", "threads"}
"""Settings that a result is not known by as they are: it is known by the precision that `auto` comes to, and threads
change it by no more than rounding."""


def settings_for(task: str, changes: dict[str, Any]) -> EvaluationSettings:
    """Return the settings of one task: defaults, the recipe's, the recipe's for this task, `changes`. A value in
    `changes` takes the place of the recipe's grid of it. Raises UserError that lists all that is wrong."""
    name = changes.get("recipe", EvaluationSettings.recipe)
    recipe = RECIPES.get(name, {}) | OF_TASKS.get(name, {}).get(task, {})
    recipe |= FROZEN if changes.get("features") else {}
    own = changes.get("grid", {})
    grid = {key: values for key, values in recipe.get("grid", {}).items() if key not in changes} | own
    settings = EvaluationSettings(**recipe | changes | {"grid": grid})
    twice = [
        Rule(
            key in changes,
            f"has a value and a grid: {changes.get(key)}, {values}",
            "one of both",
            where=key,
        )
        for key, values in own.items()
    ]
    wrong = wrong_values(settings) + _wrong_grids(grid) + broken(twice)
    wrong = wrong or broken(contradictions(settings))
    if wrong:
        raise one_error(wrong, where="settings")
    return replace(settings, grid={key: [_type(key)(value) for value in grid[key]] for key in grid})


def _type(key: str) -> type:
    return type(getattr(EvaluationSettings(), key))


def _wrong_grids(grid: dict[str, list[float]]) -> list[UserError]:
    """List the keys of a grid that are nothing to choose among, and lists without a value or with a wrong one."""
    wrong = []
    declared = {f.name: f for f in fields(EvaluationSettings)}
    for key, values in grid.items():
        where = f"grid.{key}"
        if key not in GRID:
            expected = f"one of {', '.join(GRID)}"
            wrong.append(UserError("is nothing to choose among", where=where, expected=expected))
            continue
        allowed = declared[key].metadata["values"]
        refused = [value for value in values if not allowed.allow(value) or _type(key)(value) != value]
        if refused or not values:
            got = f"got {refused[0]:g}" if refused else "has none"
            expected = allowed.expected(refused[0] if refused else 0)
            wrong.append(UserError(f"each value must be {expected}, {got}", where=where))
    return wrong


def contradictions(settings: EvaluationSettings) -> list[Rule]:
    """List what settings cannot be together. Each single value must already be one that its setting may have."""
    examples, shortest = settings.train_examples, min(settings.grid.get("epochs", [settings.epochs]))
    chooses = {
        "patience": settings.patience > 0,
        "grid": bool(settings.grid),
        "restarts": settings.restarts > 1,
        f"null_threshold={TUNE}": settings.null_threshold == TUNE,
    }
    return [
        Rule(
            examples >= 1 and not float(examples).is_integer(),
            f"must be a whole number, or a share below 1, got {examples}",
            "",
            where="train_examples",
        ),
        Rule(
            settings.null_threshold != TUNE and not _is_number(settings.null_threshold),
            f"must be a number, or {TUNE}, got {settings.null_threshold}",
            "",
            where="null_threshold",
        ),
        Rule(
            bool(settings.class_order) and settings.epochs > 0,
            f"is for models that were fine-tuned before, not for epochs={settings.epochs:g}",
            "epochs=0",
            where="class_order",
        ),
        Rule(
            "epochs" in settings.grid and not shortest,
            "each value must be above 0, got 0",
            "",
            where="grid.epochs",
        ),
        Rule(
            0 < shortest <= settings.head_epochs,
            f"must be below epochs={shortest:g}, got {settings.head_epochs:g}",
            "",
            where="head_epochs",
        ),
        *(
            Rule(
                is_set and not settings.tune_share,
                "needs tune_share",
                "a share of the training examples, as tune_share=0.1",
                where=name,
            )
            for name, is_set in chooses.items()
        ),
    ]


def identity(settings: EvaluationSettings) -> dict[str, Any]:
    """Return the settings that decide a result."""
    return {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in RUNTIME}


def defaults() -> dict[str, Any]:
    """Return the defaults of the settings that decide a result."""
    return identity(EvaluationSettings())


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False
