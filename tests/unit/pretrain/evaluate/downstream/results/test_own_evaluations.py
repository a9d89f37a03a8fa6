"""A user's own files of two kinds are scored in one process, each by its own metrics."""

from contextlib import nullcontext
from pathlib import Path

from data_pipeline.records import ShowProgress
from pretrain.evaluate.evaluate import Evaluation
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.settings import settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import write

QUIET: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731


def test_each_folder_is_known_by_its_own_metric(tmp_path: Path) -> None:
    rows = ["text\tlabel", *(f"the fox {n}\t{n % 30}" for n in range(60))]
    both = [
        Evaluation(
            "own",
            Encoder(encoder_folder("bert")),
            write(tmp_path / kind, {"train.tsv": rows, "dev.tsv": rows}),
            tmp_path / "out" / kind,
            settings_for(
                "own",
                {"epochs": 0.2, "max_length": 16, "labels": kind, "threads": 1, "tune_share": 0.5},
            ),
            [1],
            False,
        )
        for kind in ("numbers", "classes")
    ]
    for evaluation in both:
        evaluation.check()  # as `maskmill evaluate` and studies do, before anything is scored
    found = [evaluation.run(QUIET) for evaluation in both]
    assert [note["headline"] for note in found] == ["pearson", "accuracy"]
    assert [set(note["scores"]["dev"]) for note in found] == [{"pearson", "spearman"}, {"accuracy"}]
