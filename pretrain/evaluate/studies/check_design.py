"""Check that the parts of a study fit each other."""

import re

from data_pipeline.errors import UserError
from pretrain.evaluate.studies.design import EQUALITIES, Design

_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")


def check_design(design: Design, where: object) -> None:
    """Raise UserError for names that no arm can have, arms that take what is not there, and parts that contradict each
    other."""
    for name, arm in design.arms.items():
        if not _NAME.fullmatch(name):
            raise UserError(
                f"cannot name an arm {name!r}", where=where, expected="small letters, digits and _"
            )
        if (arm.segments or arm.beside) and not arm.model_of:
            key = "segments" if arm.segments else "beside"
            raise UserError(f"{key} needs model_of", where=f"{where}, arm {name}", expected="model_of: ARM")
        for source in arm.sources:
            if source not in design.arms or design.arms[source].model_of:
                raise UserError(
                    f"no such arm that trains: {source}",
                    where=f"{where}, arm {name}",
                    expected="model_of: ARM",
                )
        if arm.model_of and (arm.settings or arm.recipe):
            raise UserError("trains nothing, and has settings of a run", where=f"{where}, arm {name}")
    for scoring in design.evaluate:
        named = scoring.data.partition("shards of ")[2]
        if named and named not in design.arms:
            raise UserError(
                f"{scoring.task} is scored on the shards of {named}, which is no arm here", where=where
            )
    for equal in design.equal:
        if equal not in EQUALITIES:
            raise UserError(f"unknown {equal!r}", where=f"{where}, equal", expected=", ".join(EQUALITIES))
    if design.equal_time:
        _check_times(design, where)
    if design.tune and any(arm.model_of for arm in design.arms.values()):
        raise UserError("cannot be tuned where arms take the model of another", where=f"{where}, tune")
    if not all(design.tune.values()):
        raise UserError("an empty grid", where=f"{where}, tune", expected="SETTING: [a, b]")


def _check_times(design: Design, where: object) -> None:
    """Raise UserError where something else than the time of the reference's steps decides those of an arm."""
    place = f"{where}, equal_time"
    if design.arms[design.reference].model_of:
        raise UserError("the reference trains nothing", where=place, expected="reference: an arm that trains")
    if "train.steps" not in design.settings:
        raise UserError(
            "has no steps", where=place, expected="settings: {train.steps: NUMBER}, the reference's"
        )
    for name, arm in design.arms.items():
        for key in arm.settings.keys() & {"train.steps", "train.minutes"}:
            raise UserError(f"arm {name} has its own {key}", where=place, expected="one time for all arms")
    for key in design.tune:
        if not key.startswith("optim."):
            raise UserError(
                f"{key} is tuned", where=place, expected="settings that no step is longer for: optim.*"
            )
