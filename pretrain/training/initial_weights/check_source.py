"""Check the model that init_from names by its small files, without torch, before any rank starts."""

from pathlib import Path

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import shards_vocabulary
from pretrain.checkpoint.store import Checkpoint, named_folder, open_checkpoint
from pretrain.config.settings import RunConfig
from pretrain.preflight.check_run import Plan, identity_of
from pretrain.run.folder import model_folders, refuse_another
from pretrain.training.initial_weights.check import check_hugging_face, refuse_missing

MODEL = (
    "vocabulary",
    *(
        f"encoder.{key}"
        for key in ("layers", "hidden", "embedding_size", "heads", "intermediate", "activation")
    ),
    *(f"encoder.{key}" for key in ("sharing", "groups")),
    *(f"encoder.{key}" for key in ("max_positions", "segments", "layer_norm_eps")),
    *(f"encoder.{key}" for key in ("norm", "norm_place", "norm_biases", "embedding_norm", "head_transform")),
    "objective.electra.embeddings",
    *(f"encoder.{key}" for key in ("biases", "gated", "kv_heads", "positions", "global_every")),
    "encoder.local_attention",  # no parameter, but what each was trained with
)
"""Parts of a run's identity that a model's weights depend on, or were trained for: the bases of RoPE may change."""


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
    config = plan.phase.config
    if config.init_moments and theirs.get("optim.name") == "muon" != config.optim.name:
        raise UserError(
            f"Muon keeps one moment of a matrix, optim.name={config.optim.name} needs two",
            where=checkpoint.folder,
            remedy="init_moments=false, or optim.name=muon",
        )
