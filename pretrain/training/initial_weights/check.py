"""Check by small files, and the headers of large ones, without torch, that a run can start from a folder."""

from pathlib import Path

from data_pipeline.errors import UserError
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import FILES
from pretrain.config.settings import RunConfig
from pretrain.huggingface.registry import check_config, check_vocabulary
from pretrain.run.folder import model_folders
from pretrain.training.initial_weights.check_headers import check_headers


def check_vocabulary_there(config: RunConfig) -> None:
    """Raise UserError, for a run whose vocabulary is to be that of the folder in init_from, if there is no such folder,
    or none that is read in it."""
    if not config.init_from or config.data.vocab or "://" in config.init_from:
        return
    source = Path(config.init_from)
    refuse_missing(source)
    if model_folders(source):
        path = repr(str(source))
        raise UserError(
            "no vocabulary in this folder",
            where=source,
            expected=" or ".join(FILES),
            remedy="of a SentencePiece model transformers makes a tokenizer.json: from transformers import"
            f" AutoTokenizer; AutoTokenizer.from_pretrained({path}).save_pretrained({path})",
        )


def refuse_missing(source: Path) -> None:
    """Raise UserError if what init_from names does not exist."""
    if not source.exists():
        raise UserError(
            "no such folder",
            where=f"init_from={source}",
            expected="a Hugging Face folder on this machine, an export, a run or a checkpoint",
            remedy="`hf download NAME --local-dir FOLDER` fetches a model of the hub",
        )


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
