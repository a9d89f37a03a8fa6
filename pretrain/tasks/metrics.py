"""Compute the metrics of the tasks, and refuse a task whose libraries are not installed.

All are in percent. Where a metric is not defined, as a correlation with constant predictions, it is 0.

No other module imports scikit-learn, seqeval or udtools. scipy is imported in pretrain/studies/compare.py as well.
"""

import io
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError, first_line

try:
    import scipy.stats
    import sklearn.metrics
except ImportError:  # the extra is for those who evaluate
    sklearn = scipy = None


OF_TREES = ("udtools", "ufal.chu-liu-edmonds")
"""Packages that the task ud alone needs; the last one is imported in dependencies.py, and may need a compiler."""
EXTRA = ("scikit-learn", "scipy", "seqeval", *OF_TREES)
"""Packages of the extra `evaluate`."""


def require(task: str) -> None:
    """Raise UserError where a library of the extra is not installed that this task may need: before hours of training,
    not after."""
    needed = [package for package in EXTRA if task == "ud" or package not in OF_TREES]
    if missing := [package for package in needed if not is_installed(package)]:
        raise UserError(
            f"not installed: {', '.join(missing)}",
            where="evaluate",
            remedy='pip install "maskmill[evaluate]"',
        )


def is_installed(package: str) -> bool:
    """Return whether a package of this name is installed."""
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def conll18(gold: str, predicted: str, names: Sequence[str]) -> dict[str, float]:
    """Return the named F1 scores of the CoNLL 2018 shared task for two texts in CoNLL-U with the same tokens, by the
    scorer that Universal Dependencies maintains."""
    from udtools.udeval import evaluate, load_conllu

    found = evaluate(*(load_conllu(io.StringIO(text), None, {}) for text in (gold, predicted)))
    return {name: 100 * float(found[name].f1) for name in names}


def check_conllu(text: str, where: Path) -> None:
    """Raise UserError for a text that the official scorer refuses: no CoNLL-U, cycles, several roots."""
    from udtools.udeval import UDError, load_conllu

    try:
        load_conllu(io.StringIO(text), None, {})
    except (UDError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise UserError(
            f"is refused by the official scorer: {first_line(error)}",
            where=where,
            expected="trees in CoNLL-U, with one root each",
        ) from None


def accuracy(gold: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return the share of equal labels."""
    return 100 * float(sklearn.metrics.accuracy_score(gold, predicted))


def f1(gold: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return F1 of class 1, or of what is true."""
    return 100 * float(sklearn.metrics.f1_score(gold, predicted, pos_label=1, zero_division=0))


def matthews(gold: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return Matthews' correlation (CoLA), in its form for several classes where there are more than two (AX: Gorodkin
    2004); 0 for constant predictions."""
    return (
        0.0 if _constant(predicted, gold) else 100 * float(sklearn.metrics.matthews_corrcoef(gold, predicted))
    )


def pearson(gold: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return Pearson's correlation; 0 for constant predictions."""
    return 0.0 if _constant(predicted, gold) else 100 * float(scipy.stats.pearsonr(gold, predicted)[0])


def spearman(gold: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return Spearman's correlation, ties by their average rank; 0 for constant predictions."""
    return 0.0 if _constant(predicted, gold) else 100 * float(scipy.stats.spearmanr(gold, predicted)[0])


def _constant(*arrays: NDArray[Any]) -> bool:
    return any(np.ptp(array) == 0 for array in arrays)


def entity_f1(gold: Sequence[list[str]], predicted: Sequence[list[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of entities over all sentences, as conlleval counts them: an entity is right
    where its type and both of its ends are; a chunk also begins at an I- tag that follows O or another type. seqeval's
    default mode."""
    from seqeval.metrics import f1_score, precision_score, recall_score

    pairs = list(gold), list(predicted)
    return {
        "f1": 100 * float(f1_score(*pairs, zero_division=0)),
        "precision": 100 * float(precision_score(*pairs, zero_division=0)),
        "recall": 100 * float(recall_score(*pairs, zero_division=0)),
    }
