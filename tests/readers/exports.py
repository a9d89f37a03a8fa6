"""An export of every family, with what transformers computes from it here, and a table of what other versions compute.

    python -m tests.readers.exports write FOLDER      exports, inputs and logits, by the transformers of this Python
    PYTHON tests/readers/load.py FOLDER > A.jsonl     what another Python's transformers makes of them
    python -m tests.readers.exports table A.jsonl ... a row a family, a column a version; fails if the last one differs

`make test-transformers` does all of it. A new family is there by itself: objectives are taken from their registry, with
every body that has a place in one of their families.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from data_pipeline.vocabulary.base import Vocabulary
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.export.export import export
from pretrain.huggingface.load import quiet
from pretrain.huggingface.registry import FAMILIES, chosen_families, family_of
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import without_padding
from pretrain.objectives.registry import OBJECTIVES, load, registered
from pretrain.run.folder import model_folders
from tests.factories.exports import CARD
from tests.factories.models import config_of
from tests.factories.vocabularies import trained
from tests.reference.conftest import masked_examples

PLAIN: dict[str, Any] = {
    "layers": 2, "hidden": 24, "heads": 3, "intermediate": 40, "max_positions": 48, "dropout": 0.0,
    "attention_dropout": 0.0, "initializer_range": 0.3,
}  # fmt: skip
MODERN = {
    "norm_place": "pre", "norm_biases": False, "biases": False, "gated": True, "activation": "gelu", "segments": 0,
    "positions": "rope", "layers": 3, "global_every": 2, "local_attention": 8, "heads": 2,
}  # fmt: skip
EUROBERT = {
    "norm_place": "pre", "norm": "rms", "norm_biases": False, "biases": False, "gated": True, "activation": "silu",
    "segments": 0, "positions": "rope", "embedding_norm": False, "head_transform": False, "kv_heads": 1, "heads": 2,
}  # fmt: skip
BODIES = {"": {}, "modern": MODERN, "eurobert": EUROBERT}
"""Encoders that the classes of transformers have places for."""
TEXT = "The quick brown fox jumped over the lazy dog, and it was not seen again."
INPUTS, LOGITS = "inputs.safetensors", "expected.safetensors"
ALLOWED = 1e-4
"""Largest difference of two logits in float32, as a share of the largest one if that is above 1."""


def runs() -> Iterator[tuple[str, RunConfig, Vocabulary]]:
    """Yield a name, the settings and the vocabulary of runs whose exports are together of every family."""
    for body, settings in BODIES.items():
        for objective in OBJECTIVES:
            vocabulary = _vocabulary(objective)
            encoder = EncoderSettings(**{**PLAIN, **settings})
            config = config_of(objective, encoder, vocabulary_size=vocabulary.size)
            if body == "modern" and objective == "electra":
                config.objective.electra.generator_layers, config.objective.electra.generator_share = 2, 1.0
            try:
                chosen_families(load(config).families, config)
            except UserError:  # no class has such an encoder
                continue
            yield "-".join(filter(None, (objective, body))), config, vocabulary


def write(out: Path) -> list[str]:
    """Write exports to folders in `out`, with inputs and logits in each; return the names of their families."""
    found: list[str] = []
    for name, config, vocabulary in runs():
        new = [family.name for family in chosen_families(load(config).families, config)]
        if set(new) <= set(found):
            continue
        model = load(config).fresh_model(VocabularyStamp.of(vocabulary))
        generator = torch.Generator().manual_seed(6)
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
        state = without_padding(model, {n: p.detach() for n, p in model.named_parameters()})
        pairs = registered(config.objective.name).judges_pairs
        examples = masked_examples(12, vocabulary.size, pairs=bool(pairs))
        export(state, config, vocabulary.json, out / name, examples, CARD)
        for folder in model_folders(out / name):
            found.append(_expect(folder, MicroBatch.from_examples(examples.take(range(4))), vocabulary.pad))
    return found


def _vocabulary(objective: str) -> Vocabulary:
    needs = registered(objective).needs
    kind = needs.get("vocabulary.kind", ("wordpiece",))[0]
    specials = needs.get("vocabulary.specials", ("",))[0]
    return trained(kind, specials=specials)


def _expect(folder: Path, batch: MicroBatch, pad: int) -> str:
    """Write what transformers computes here from an export; return the name of its family."""
    family, _ = family_of(folder)
    inputs = family.inputs(batch, pad)
    with quiet(), torch.no_grad():
        model = getattr(transformers, family.export_class).from_pretrained(folder).eval()
        encoder = transformers.AutoModel.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        out = model(**inputs)
        expected = {
            head.output: out[head.output].contiguous() for head in family.heads.values() if head.output in out
        }
        if family.pipeline != "text-generation" and not family.cls_last:
            expected["last_hidden_state"] = encoder(**inputs).last_hidden_state.contiguous()
    save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, folder / INPUTS)
    save_file(expected, folder / LOGITS)
    note = {
        "family": family.name,
        "class": family.export_class,
        "ids": tokenizer(TEXT)["input_ids"],
        "text": TEXT,
    }
    (folder / "expected.json").write_text(json.dumps(note | {"allowed": ALLOWED}))
    return family.name


def table(files: list[Path]) -> tuple[list[str], bool]:
    """Return the rows of a Markdown table of what each version made of each family, and whether all is well in the
    newest one, the last file."""
    versions: dict[str, dict[str, dict[str, str]]] = {}
    for file in files:
        lines = [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{")]
        versions[lines[0]["transformers"]] = {line["family"]: line for line in lines}
    rows = [f"| family | {' | '.join(versions)} |", f"|---|{'---|' * len(versions)}"]
    for name in FAMILIES:
        cells = [_cell(found.get(name)) for found in versions.values()]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    newest = list(versions.values())[-1]
    return rows, all(_cell(newest.get(name)) == "same" for name in FAMILIES)


def _cell(line: dict[str, str] | None) -> str:
    if line is None:
        return "no export"
    if line["model"] == line["tokenizer"] == "same":
        return "same"
    return "; ".join(f"{part}: {line[part]}" for part in ("model", "tokenizer") if line[part] != "same")


def main(arguments: list[str]) -> int:
    if arguments[0] == "write":
        Path(arguments[1]).mkdir(parents=True, exist_ok=True)
        lacking = FAMILIES.keys() - set(write(Path(arguments[1])))
        print(
            f"no run of tests/readers/exports.py has the families {sorted(lacking)}"
            if lacking
            else "every family is there"
        )
        return int(bool(lacking))
    rows, is_well = table([Path(file) for file in arguments[1:]])
    print("\n".join(rows))
    return int(not is_well)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
