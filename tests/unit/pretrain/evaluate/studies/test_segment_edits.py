"""The segment table of a folder is changed as the paper's settings say, and nothing else is."""

import json
from pathlib import Path

import pytest
import torch

from data_pipeline.errors import UserError
from pretrain.evaluate.studies.segment_edits import TABLE, edited_folder
from pretrain.export.families.stored import stored_tensors
from tests.factories.encoders import encoder_folder


def table_and_rest(folder: Path) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    tensors = stored_tensors(folder)
    (name,) = [name for name in tensors if name.endswith(TABLE)]
    return tensors.pop(name), tensors


@pytest.mark.parametrize("edit", ["ORIGINAL", "1S", "0S", "AVG", "NULL", "RAND24"])
def test_edits(edit: str, tmp_path: Path) -> None:
    source = encoder_folder("bert")
    (zero, one), rest = table_and_rest(source)
    assert not torch.equal(zero, one)
    target = edited_folder(source, edit, tmp_path / "model")
    rows, kept = table_and_rest(target)
    assert kept.keys() == rest.keys()
    assert all(torch.equal(kept[name], rest[name]) for name in rest)
    assert {path.name for path in source.iterdir()} == {path.name for path in target.iterdir()}
    wanted = {"ORIGINAL": (zero, one), "1S": (one, one), "0S": (zero, zero), "NULL": (0 * zero, 0 * zero)}
    wanted["AVG"] = ((zero + one) / 2,) * 2
    if edit in wanted:
        assert torch.equal(rows, torch.stack(wanted[edit]))
    else:
        deviation = json.loads((source / "config.json").read_text())["initializer_range"]
        assert deviation < rows.abs().max() <= 2 * deviation
        again = table_and_rest(edited_folder(source, "RAND24", tmp_path / "again"))[0]
        other = table_and_rest(edited_folder(source, "RAND513", tmp_path / "other"))[0]
        assert torch.equal(rows, again)
        assert not torch.equal(rows, other)


def test_wrong_edits_and_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown 'TWO'"):
        edited_folder(encoder_folder("bert"), "TWO", tmp_path / "model")
    with pytest.raises(UserError, match="has no table of two segments"):
        edited_folder(encoder_folder("roberta"), "NULL", tmp_path / "model")
    assert not list(tmp_path.iterdir())
