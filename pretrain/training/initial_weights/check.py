"""Check by small files, and the headers of large ones, without torch, that a run can start from a folder."""

from pathlib import Path

from data_pipeline.errors import UserError
from data_pipeline.vocabulary.files import Vocabulary
from pretrain.config.settings import RunConfig
from pretrain.export.families.registry import check_config, check_vocabulary
from pretrain.run.folder import model_folders
from pretrain.training.initial_weights.check_headers import check_headers


def check_hugging_face(config: RunConfig, vocabulary: Vocabulary) -> Vocabulary:
    """Return the vocabulary of the folder in init_from, which `vocabulary`, the run's, is or extends.

    Raises UserError if the folder is of an unknown family, differs from this run in sizes, in what its class fixes or
    in its vocabulary, or has no whole encoder of such sizes in files that load without running code."""
    source, old = Path(config.init_from), vocabulary
    if config.init_moments:
        raise UserError("a Hugging Face folder has no moments", where=source, remedy="init_moments=false")
    for folder in model_folders(source):
        old = check_vocabulary(folder, vocabulary, may_extend=True)
        check_config(folder, config, old.size)
    check_headers(config, model_folders(source))
    return old
