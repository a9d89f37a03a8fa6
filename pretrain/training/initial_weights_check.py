"""Check that a run can start from what init_from names, a Hugging Face folder or a checkpoint, before it is loaded.

Only small files are read, and the headers of large ones. The command line checks before it prepares data and before any
rank starts, so that a preparation of hours need not be followed by a refusal. torch is imported only for a Hugging Face
folder, whose weights are taken through all steps of the loading (initial_weights.py) on the meta device.
"""

from dataclasses import fields
from pathlib import Path

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import shards_vocabulary
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import FILES
from pretrain.checkpoint.store import Checkpoint, named_folder, open_checkpoint
from pretrain.config.encoder import MAY_CHANGE, TRAINING_ONLY, EncoderSettings
from pretrain.config.settings import OptimSettings, RunConfig
from pretrain.optim.registry import optimizer_record
from pretrain.preflight.check_run import Plan, identity_of
from pretrain.run.folder import model_folders, refuse_another

# Whether a run can start from a Hugging Face folder: its vocabulary, its settings and its weights.


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


def check_hugging_face(config: RunConfig, vocabulary: Vocabulary) -> None:
    """Raise UserError if the folder in init_from is of an unknown family, differs from this run in sizes, in what its
    class fixes or in its vocabulary, which `vocabulary`, the run's, is or extends, or has no whole encoder of such
    sizes in files that load without running code: as the loading would, whose steps are taken without values."""
    if config.init_moments:
        raise UserError(
            "a Hugging Face folder has no moments", where=config.init_from, remedy="init_moments=false"
        )
    from pretrain.training.initial_weights import from_folder

    from_folder(config, vocabulary, headers_only=True)


# Whether a run can start from the model that init_from names, a Hugging Face folder or a checkpoint.

MODEL = (
    "vocabulary",
    *(
        f"encoder.{one.name}"
        for one in fields(EncoderSettings)
        if one.name not in (*TRAINING_ONLY, *MAY_CHANGE)
    ),
    "objective.electra.embeddings",
)
"""Parts of a run's identity that a model's weights depend on, or were trained for."""


def check_starting_weights(config: RunConfig, plan: Plan) -> None:
    """Raise UserError if this run cannot start from init_from. Does not read weights."""
    if not config.init_from:
        return
    source = Path(config.init_from)
    refuse_missing(source)
    if model_folders(source):
        check_hugging_face(config, shards_vocabulary(plan.index))
    else:
        refuse_another_model(open_checkpoint(named_folder(source)), plan)


def refuse_another_model(checkpoint: Checkpoint, plan: Plan) -> None:
    """Raise UserError, listing differences, if the checkpoint is of a different model than this run's."""
    ours = {key: value for key, value in identity_of(plan.phase.config, plan).items() if key in MODEL}
    theirs = checkpoint.state["identity"]
    refuse_another(theirs, ours, checkpoint.folder, "choose another init_from")
    if not plan.phase.config.init_moments:
        return
    name, before = plan.phase.config.optim.name, theirs.get("optim.name", OptimSettings().name)
    for matrices in (False, True):
        needed, kept = (set(optimizer_record(one).moments_of(matrices=matrices)) for one in (name, before))
        if needed - kept:
            raise UserError(
                f"optim.name={name} needs moments that optim.name={before} does not keep of every parameter: "
                f"{', '.join(sorted(needed - kept))}",
                where=checkpoint.folder,
                remedy=f"init_moments=false, or optim.name={before}",
            )
