"""Register all verbs, a module for each subject; the order here is that of `--help`."""

from launch.verbs import data, training, slurm, status, models, publishing, looking, dashboard, doctor  # noqa: I001

__all__ = ["dashboard", "data", "doctor", "looking", "models", "publishing", "slurm", "status", "training"]
