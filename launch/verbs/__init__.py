"""The verbs, a module for each subject. Importing this package registers all; the order here is that of `--help`."""

from launch.verbs import data, training, models, looking, dashboard  # noqa: I001

__all__ = ["dashboard", "data", "looking", "models", "training"]
