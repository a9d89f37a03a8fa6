"""Load exports by the transformers of this Python, and compare with what is stored beside them: a line of JSON each.

Runs in the environment of an older version, with nothing but transformers, torch and safetensors: it imports nothing of
Maskmill.

    PYTHON tests/readers/load.py FOLDER
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file


def compared(folder: Path, note: dict) -> str:
    """Say how the class that an export names, and the plain encoder, compare with what is stored."""
    inputs, expected = (load_file(folder / f"{name}.safetensors") for name in ("inputs", "expected"))
    kind = getattr(transformers, note["class"], None)
    if kind is None:
        return "no such class"
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    lacking = sorted(info["missing_keys"]) + sorted(info["unexpected_keys"])
    encoder = transformers.AutoModel.from_pretrained(folder)  # without heads: it loads, and computes the same
    with torch.no_grad():
        out = model.eval()(**inputs)
        found = {name: out[name] for name in expected if name in out}
        if "last_hidden_state" in expected:
            found["last_hidden_state"] = encoder.eval()(**inputs).last_hidden_state
    for name, wanted in expected.items():
        if name not in found:
            return f"no {name}"
        difference, largest = ((x * real_rows(x, inputs)).abs().max() for x in (found[name] - wanted, wanted))
        if not float(difference) <= note["allowed"] * max(1.0, float(largest)):
            return f"{name} differs by {difference:.2g}" + (f", keys {lacking[:2]}" if lacking else "")
    return "same"


def real_rows(values: torch.Tensor, inputs: dict) -> torch.Tensor:
    """Return 1 at tokens and 0 at padding, whose vectors mean nothing, in the shape of outputs by token; else 1."""
    mask = inputs.get("attention_mask")
    if mask is None or values.shape[:2] != mask.shape:
        return torch.ones(())
    return mask.reshape(*mask.shape, *[1] * (values.dim() - 2)).float()


def tokenized(folder: Path, note: dict) -> str:
    """Say whether the tokenizer gives the ids that are stored."""
    ids = transformers.AutoTokenizer.from_pretrained(folder)(note["text"])["input_ids"]
    return "same" if ids == note["ids"] else "other ids"


def tried(call, *arguments) -> str:
    """Return what a call says, or its error in short."""
    try:
        return call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"


def main(root: Path) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for path in sorted(root.rglob("expected.json")):
        note = json.loads(path.read_text())
        line = {"transformers": transformers.__version__, "family": note["family"]}
        line |= {
            "model": tried(compared, path.parent, note),
            "tokenizer": tried(tokenized, path.parent, note),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
