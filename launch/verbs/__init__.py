"""The verbs, a module for each subject. Importing this package registers all; the order here is that of `--help`."""

from launch.verbs import data, training, models, publishing, looking  # noqa: I001

__all__ = ["data", "looking", "models", "publishing", "training"]
