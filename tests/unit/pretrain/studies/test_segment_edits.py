"""The segment table of a folder is changed as the paper's settings say, and nothing else is."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from data_pipeline.errors import UserError
from pretrain.huggingface.folder import stored_tensors
from pretrain.studies.segment_edits import TABLE, edited_folder
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


def test_a_copy_of_another_source_or_edit_is_replaced(tmp_path: Path) -> None:
    """A study that is scored again with another --model must not score the old one's weights."""
    source, target = tmp_path / "source", tmp_path / "model"
    shutil.copytree(encoder_folder("bert"), source)
    first = table_and_rest(edited_folder(source, "1S", target))
    (target / "kept").touch()
    edited_folder(source, "1S", target)
    assert (target / "kept").exists(), "the same is not copied again"
    tensors = {name: tensor + 1 for name, tensor in stored_tensors(source).items()}
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    other = table_and_rest(edited_folder(source, "1S", target))
    assert torch.equal(other[0], first[0] + 1)
    assert all(torch.equal(other[1][name], tensor + 1) for name, tensor in first[1].items())
    zeros = table_and_rest(edited_folder(source, "NULL", target))[0]
    assert not zeros.any()
    (tmp_path / "model.source.json").unlink()
    (target / "kept").touch()
    edited_folder(source, "NULL", target)
    assert not (target / "kept").exists(), "of a copy without a note nothing is known"


def test_wrong_edits_and_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown 'TWO'"):
        edited_folder(encoder_folder("bert"), "TWO", tmp_path / "model")
    with pytest.raises(UserError, match="has no table of two segments"):
        edited_folder(encoder_folder("roberta"), "NULL", tmp_path / "model")
    assert not list(tmp_path.iterdir())
