"""A model with the encoder of ModernBERT: trained in two phases, exported, and the weights of another one's start.

That it resumes bit-equal: tests/multirank/test_every_objective.py.
"""

import json
from pathlib import Path

import pytest

from pretrain.huggingface.modernbert import MODERNBERT_FOR_MASKED_LM
from tests.command_line import ROOT, Maskmill, write_text
from tests.factories.members import MODERN, prepared_member
from tests.pages import commands_of
from tests.run_ends import metrics_at

# what DeepSpeed's imports give rise to in a process of pytest's
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

THETAS = [(500.0, 90.0), (30.0, 7.0)]
"""RoPE's bases in both phases, of global and of local layers."""
PHASES = ", ".join(
    f"{{name: p{number}, train: {{steps: 2}}, encoder: {{rope_theta: {far}, local_rope_theta: {near}}}}}"
    for number, (far, near) in enumerate(THETAS)
)


def exported_thetas(model: Path) -> tuple[float, float]:
    read = MODERNBERT_FOR_MASKED_LM.settings(json.loads((model / "config.json").read_text()))
    return read["rope_theta"], read["local_rope_theta"]


@pytest.mark.slow
def test_a_modern_encoder_is_exported_and_goes_on(
    here: None, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    settings = prepared_member(MODERN, tiny, maskmill, tmp_path)
    first, model = tmp_path / "first", tmp_path / "model"
    maskmill("train", "demo", *settings, "zero.stage=3", f"run.dir={first}", f"phases=[{PHASES}]")
    assert "in float64: mlm" in maskmill("export", str(first), "--out", str(model)).stdout
    assert json.loads((model / "config.json").read_text())["architectures"] == ["ModernBertForMaskedLM"]
    assert exported_thetas(model) == THETAS[-1], "those of the phase in which the weights ended"
    maskmill("export", str(first / "checkpoints" / "step-00000002"), "--out", str(tmp_path / "before"))
    assert exported_thetas(tmp_path / "before") == THETAS[0]
    maskmill("train", "demo", *settings, f"run.dir={tmp_path}/next", f"init_from={model}")
    ends, starts = (
        metrics_at(run, "eval", step)["held_out_loss"] for run, step in ((first, 4), (tmp_path / "next", 0))
    )
    assert starts == pytest.approx(ends, rel=1e-5), "it starts from what was exported"


SMALL = {
    "vocab": ["vocabulary.size=300"],
    "prepare": [],
    "train": [
        "train.steps=2",
        "train.eval_examples=32",
        "train.checkpoint_every=0",
        "run.ranks=1",
        "run.threads=1",
    ],
}
"""What makes the page's commands take seconds, beside another text."""


@pytest.mark.slow
def test_the_commands_of_the_page(here: None, maskmill: Maskmill, tmp_path: Path) -> None:
    write_text(tmp_path / "text.txt", documents=60)
    pages = [ROOT / "docs" / group / "objectives.md" for group in ("reference", "guides")]
    commands = [words for page in pages for words in commands_of(page, "tests/smoke/test_modern_encoder.py")]
    assert [verb for verb, *_ in commands] == ["vocab", "prepare", "train", "export", "train", "export"]
    for verb, *arguments in commands:
        own = ["data.sources=text.txt", *SMALL[verb]] if verb in SMALL else []
        maskmill(verb, *arguments, *own, cwd=tmp_path)
    classes = {
        "modernbert_tiny/export": "ModernBertForMaskedLM",
        "modern_electra/export/discriminator": "ModernBertModel",
        "modern_electra/export/generator": "ModernBertForMaskedLM",
    }
    for folder, expected in classes.items():
        config = json.loads((tmp_path / "runs" / folder / "config.json").read_text())
        assert config["architectures"] == [expected]
    assert config["num_hidden_layers"] == 2, "smaller by its layers alone"
    assert config["hidden_size"] == 128
