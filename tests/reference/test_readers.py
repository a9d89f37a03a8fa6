"""What `make test-transformers` runs in other versions' environments, run in this one: every family, each the same."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pretrain.huggingface.registry import FAMILIES
from tests.readers.exports import table, write
from tests.readers.load import compared, main, tokenized

COPIES = {"roberta": "lm_head", "xlmr": "lm_head", "albert": "predictions"}
"""Exports with a copy of the output bias, which transformers 4.46 to 4.48 read in place of the bias."""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    assert set(write(folder)) == set(FAMILIES)
    return folder


@pytest.mark.slow
def test_every_family_is_read_as_it_was_written(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(exports)
    (tmp_path / "newest.jsonl").write_text(capsys.readouterr().out)
    rows, is_well = table([tmp_path / "newest.jsonl"])
    assert is_well, "\n".join(rows)
    assert rows[0] == f"| family | {transformers.__version__} |"
    assert len(rows) == 2 + len(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", COPIES)
def test_the_output_bias_is_stored_twice_and_a_difference_shows(exports: Path, name: str) -> None:
    folder = exports / name
    tensors, note = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "expected.json").read_text()),
    )
    bias, copy = (tensors[f"{COPIES[name]}.{where}bias"] for where in ("", "decoder."))
    assert bias.abs().min() > 0
    assert torch.equal(bias, copy)
    assert compared(folder, note) == tokenized(folder, note) == "same"
    for key in (f"{COPIES[name]}.bias", f"{COPIES[name]}.decoder.bias"):
        tensors[key] = torch.zeros_like(bias)
    kept = (folder / "model.safetensors").read_bytes()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "logits differs by" in compared(folder, note)
    (folder / "model.safetensors").write_bytes(kept)
    assert tokenized(folder, {**note, "ids": [1, 2]}) == "other ids"
