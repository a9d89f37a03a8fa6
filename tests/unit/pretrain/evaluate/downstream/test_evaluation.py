"""One task of one encoder, from its files to result.json: which parts it has, what they are told and what is kept."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.records import ShowProgress
from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.evaluate import Evaluation
from pretrain.evaluate.downstream.settings import settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write, write_pairs

SILENT: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731


def evaluation(task: str, folder: Path, seeds: int = 1, **changes: Any) -> Evaluation:
    """With its floor, and results in OUT beside the folder."""
    wanted = settings_for(task, {"max_length": 32, "threads": 1, **changes})
    return Evaluation(
        task,
        Encoder(encoder_folder("bert")),
        folder,
        folder.parent / "out",
        wanted,
        range(1, seeds + 1),
        True,
    )


@pytest.mark.parametrize("task", ["blimp", "perplexity"])
def test_without_training_each_seed_is_another_random_encoder(task: str, tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "task", 4) if task == "blimp" else tmp_path / "task"
    if task == "perplexity":
        write(folder, {"a.txt": ["The quick fox jumped over it.", "Dogs slept."]})
    one, three = (evaluation(task, folder, seeds) for seeds in (1, 3))
    assert [(part.encoder.pretrained, part.seed) for part in one.parts] == [(True, 1), (False, 1)]
    note = three.run(SILENT)
    assert note["seeds"] == [1]
    metric = note["headline"]
    assert len(note["scores"]["dev"][metric]["values"]) == 1
    floor = note["not_pretrained"]["dev"][metric]
    assert len(floor["values"]) == 3
    assert floor["std"] is not None
    assert task == "blimp" or len(set(floor["values"])) == 3


def test_with_training_each_seed_has_a_floor_of_its_own(tmp_path: Path) -> None:
    parts = evaluation("rte", write(tmp_path / "task", FILES["rte"]), 2).parts
    found = [(part.encoder.pretrained, part.seed) for part in parts]
    assert found == [(True, 1), (True, 2), (False, 1), (False, 2)]
