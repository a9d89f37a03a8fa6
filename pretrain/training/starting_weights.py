"""Check the model that init_from names by its small files, without torch, before any rank starts."""

from pathlib import Path

from data_pipeline.errors import UserError
from data_pipeline.loader.dynamic_masking import shards_vocabulary
from pretrain.checkpoint.store import Checkpoint, named_folder, open_checkpoint
from pretrain.config.settings import RunConfig
from pretrain.export.families.registry import check_config, check_vocabulary, weight_files
from pretrain.preflight.check_run import Plan
from pretrain.run.folder import model_folders, refuse_another
from pretrain.training.claim_folder import identity_of

MODEL = (
    "vocabulary",
    *(
        f"encoder.{key}"
        for key in ("layers", "hidden", "embedding_size", "heads", "intermediate", "activation")
    ),
    *(f"encoder.{key}" for key in ("sharing", "groups")),
    *(f"encoder.{key}" for key in ("max_positions", "segments", "layer_norm_eps")),
)
"""Parts of a run's identity that its weights depend on."""


def check_starting_weights(config: RunConfig, plan: Plan) -> None:
    """Raise UserError if this run cannot start from init_from. Does not read weights."""
    if not config.init_from:
        return
    source = Path(config.init_from)
    if model_folders(source):
        check_hugging_face(source, config, plan)
    else:
        refuse_another_model(open_checkpoint(named_folder(source)), plan)


def refuse_another_model(checkpoint: Checkpoint, plan: Plan) -> None:
    """Raise UserError, listing differences, if the checkpoint is of a different model than this run's."""
    ours = {key: value for key, value in identity_of(plan.phase.config, plan).items() if key in MODEL}
    refuse_another(checkpoint.state["identity"], ours, checkpoint.folder, "choose another init_from")


def check_hugging_face(source: Path, config: RunConfig, plan: Plan) -> None:
    """Raise UserError if the Hugging Face folder is of an unsupported family, or differs from this run in sizes or
    vocabulary."""
    if config.init_moments:
        raise UserError("a Hugging Face folder has no moments", where=source, remedy="init_moments=false")
    for folder in model_folders(source):
        check_vocabulary(folder, shards_vocabulary(plan.index))
        check_config(folder, config, plan.index.vocabulary.size)
        weight_files(folder)
