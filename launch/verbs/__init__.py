"""Register all verbs, a module for each subject; the order here is that of `--help`."""

from launch.verbs import data, training, slurm, status  # noqa: I001
from launch.verbs import models, evaluating, studying, publishing, looking, dashboard, doctor

__all__ = [
    "dashboard",
    "data",
    "doctor",
    "evaluating",
    "looking",
    "models",
    "publishing",
    "slurm",
    "status",
    "studying",
    "training",
]
