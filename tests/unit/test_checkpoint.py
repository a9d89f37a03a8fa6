"""Checkpoints: any piece of any tensor comes back, nothing half-written looks whole, damage is found."""

import json
from pathlib import Path

import pytest
import torch

from data_pipeline.errors import UserError
from pretrain.checkpoint import (
    Fragment,
    checkpoints,
    drop_leftovers,
    find_checkpoint,
    newest_checkpoint,
    open_checkpoint,
    save_checkpoint,
    sealed,
)
from pretrain.world import World

WEIGHT = torch.arange(12.0).view(3, 4)
SHAPES = {"a.weight": [3, 4], "a.bias": [2]}


def save(run: Path, step: int = 5) -> Path:
    """A checkpoint whose weight lies in two fragments, as two ranks would leave it."""
    flat = WEIGHT.reshape(-1)
    fragments = [
        Fragment("master", "a.weight", 0, flat[:7]),
        Fragment("master", "a.weight", 7, flat[7:]),
        Fragment("exp_avg", "a.weight", 0, flat * 2),
        Fragment("master", "a.bias", 0, torch.tensor([1.0, -1.0])),
    ]
    return save_checkpoint(run, step, fragments, SHAPES, {"position": {"step": step}}, World())


def test_any_piece_of_any_tensor_comes_back(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path))
    assert torch.equal(checkpoint.tensor("a.weight"), WEIGHT)
    assert torch.equal(checkpoint.tensor("a.weight", "exp_avg"), WEIGHT * 2)
    for start in range(12):
        for length in range(1, 13 - start):
            piece = checkpoint.read("a.weight", "master", start, length)
            assert torch.equal(piece, WEIGHT.reshape(-1)[start : start + length])
    assert checkpoint.state == {"position": {"step": 5}}
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000005"


def test_a_missing_piece_is_an_error(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path))
    with pytest.raises(UserError, match=r"holds 0 of 2 elements of exp_avg/a\.bias"):
        checkpoint.read("a.bias", "exp_avg", 0, 2)


def test_without_its_marker_it_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 5)
    save(tmp_path, 10)
    (tmp_path / "checkpoints" / "step-00000010" / "checkpoint.json").unlink()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.step == 5


def test_a_save_that_dies_leaves_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, 5)

    def dying():  # type: ignore[no-untyped-def]
        yield Fragment("master", "a.weight", 0, WEIGHT.reshape(-1))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 10, dying(), SHAPES, {}, World())
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000005"]
    save(tmp_path, 10)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000005", "step-00000010"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_damaged_bytes_are_found(tmp_path: Path, damage: str) -> None:
    path = save(tmp_path) / "fragments-00000.safetensors"
    if damage == "flip":
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(UserError, match=r"fragments-00000.*bytes changed"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"files": [{"file": "../../secret", "bytes": 1, "sha256": "0"}]},
        {"files": [{"file": "a", "bytes": "many", "sha256": "0"}]},
        {"files": 3},
        {"shapes": []},
        {"format": 99},
        {"step": None},
    ],
)
def test_a_hostile_marker_is_one_line(tmp_path: Path, change: dict) -> None:
    marker = save(tmp_path) / "checkpoint.json"
    marker.write_bytes(sealed(json.loads(marker.read_text()) | change))
    with pytest.raises(UserError, match=r"malformed|checkpoint format 99"):
        find_checkpoint(tmp_path)


def test_what_killed_saves_left_goes(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "checkpoints" / "step-00000001" / "checkpoint.json").unlink()  # killed while it was deleted
    (tmp_path / "checkpoints" / "step-00000003.partial").mkdir()
    drop_leftovers(tmp_path)
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*")) == ["step-00000002"]


def test_a_folder_without_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        find_checkpoint(tmp_path)
    with pytest.raises(UserError, match="not a checkpoint"):
        open_checkpoint(tmp_path)
