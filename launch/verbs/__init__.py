"""Register all verbs, a module for each subject; the order here is that of `--help`."""

from launch.verbs import data, look, slurm, train, evaluate, export, study  # noqa: I001

__all__ = ["data", "evaluate", "export", "look", "slurm", "study", "train"]
