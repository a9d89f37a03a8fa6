"""A folder of shards, a run, a checkpoint or an exported model in; what is in it, for people or as JSON, out.

Every hash is verified on the way: what is shown has the bytes that were written.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data_pipeline.errors import UserError
from data_pipeline.index import INDEX, TOKENIZER, Index
from data_pipeline.records import Examples
from data_pipeline.shards import BlockReader, verify_full
from data_pipeline.storage import read_bytes
from data_pipeline.vocabulary import parse_tokenizer_json
from pretrain.checkpoint import MARKER, checkpoints, find_checkpoint, open_checkpoint
from pretrain.monitor import read_metrics
from pretrain.run_folder import RUN, read_run, read_summary


def inspect_path(path: Path, console: Console, as_json: bool, examples: str, split: str) -> None:
    """Prints what is in `path`. With `examples`, the examples of one split of shards instead, as many as asked."""
    if not path.exists():
        raise UserError("no such folder", where=path)
    if examples:
        _print_examples(Index.load(path), split, examples, console, as_json)
        return
    facts = describe(path)
    if as_json:
        print(json.dumps(facts, indent=1, sort_keys=True))
        return
    if facts["kind"] == "run":
        _show_run(facts, path, console)
        return
    _show(facts, console)
    if facts["kind"] == "shards":
        index = Index.load(path)
        block = next(BlockReader(index, index.train).read([(0, 0)]))
        console.print(escape(rendered(block, 0, words_of(index))), soft_wrap=True)


def describe(path: Path) -> dict[str, Any]:
    """Facts about `path` by name. Raises UserError for a damaged file, or a folder that is none of ours."""
    if (path / INDEX).is_file():
        return _shards(path)
    if (path / RUN).is_file():
        return _run(path)
    if (path / MARKER).is_file():
        return _checkpoint(path)
    if (path / "config.json").is_file():
        return _model(path)
    raise UserError(
        "nothing to inspect",
        where=path,
        expected="a folder of shards, a run, a checkpoint or an exported model",
    )


def _shards(path: Path) -> dict[str, Any]:
    index = Index.load(path)
    verify_full(index)
    return {
        "kind": "shards",
        "splits": {
            name: {"shards": len(s.shards), "examples": s.examples, "tokens": s.tokens, "masked": s.masked}
            for name, s in index.splits.items()
        },
        "statistics": dict(index.statistics),
        "settings": dict(index.settings),
        "vocabulary": index.vocabulary._asdict(),
        "identity": index.identity,
        "hashes": "all hold",
    }


def _run(path: Path) -> dict[str, Any]:
    run, summary = read_run(path), read_summary(path)
    assert run is not None
    found = []
    for folder in checkpoints(path):
        open_checkpoint(folder).verify()
        found.append(folder.name)
    return {
        "kind": "run",
        **summary,
        "lives": run["lives"],
        "id": run["id"],
        "lines": len(read_metrics(path)),
        "checkpoints": found,
        "hashes": "all hold",
        "where": {
            "run": str(path),
            "report": str(path / "report.html") if (path / "report.html").is_file() else "",
            "model": str(path / "export") if (path / "export").is_dir() else "",
        },
    }


def _checkpoint(path: Path) -> dict[str, Any]:
    checkpoint = find_checkpoint(path)
    return {
        "kind": "checkpoint",
        "step": checkpoint.step,
        "parameters": sum(int(np.prod(shape)) for shape in checkpoint.shapes.values()),
        "tensors": len(checkpoint.shapes),
        "bytes": sum(entry["bytes"] for entry in checkpoint.files),
        "position": checkpoint.state.get("position"),
        "conditions": checkpoint.state.get("conditions"),
        "hashes": "all hold",
    }


def _model(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        with safe_open(path / "model.safetensors", framework="pt") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"cannot be read: {error}", where=path) from None
    return {
        "kind": "exported model",
        "architectures": config.get("architectures"),
        "parameters": sum(int(np.prod(shape)) for shape in shapes.values()),
        "tensors": len(shapes),
        "files": sorted(p.name for p in path.iterdir()),
        "hidden_size": config.get("hidden_size"),
        "num_hidden_layers": config.get("num_hidden_layers"),
        "vocab_size": config.get("vocab_size"),
        "hashes": _model_hashes(path),
    }


def _model_hashes(path: Path) -> str:
    """Raises UserError for the first file of an exported model whose bytes are not those that were written."""
    note = path / "maskmill.json"
    if not note.is_file():
        return "none: not exported by Maskmill"
    try:
        hashes = dict(json.loads(note.read_text(encoding="utf-8"))["sha256"])
    except (ValueError, KeyError, TypeError):
        raise UserError("malformed", where=note, expected="the SHA-256 of each file") from None
    for name, expected in hashes.items():
        file = path / Path(str(name)).name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise UserError(
                "is missing or its bytes changed since the export", where=file, remedy="export again"
            )
    return "all hold"


def _show(facts: dict[str, Any], console: Console) -> None:
    table = Table(title=facts["kind"], show_header=False, title_justify="left")
    for key, value in _flat(facts):
        if key != "kind" and "histogram" not in key:
            table.add_row(escape(key), escape(_number(value)))
    console.print(table)
    for key, value in _flat(facts):
        if "histogram" in key:
            console.print(escape(f"{key}\n{bars(value)}"))


def _show_run(facts: dict[str, Any], path: Path, console: Console) -> None:
    """The few figures that a person asks for first; the rest is in --json and in the report."""
    table = Table(title=f"run {path}", show_header=False, title_justify="left")
    for name, value in run_headlines(facts, read_metrics(path)):
        table.add_row(escape(name), escape(value))
    console.print(table)


def run_headlines(facts: dict[str, Any], lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What a run came to, in words: (what, figure)."""
    rows = [
        (
            "status",
            f"{facts.get('status', 'not started')}, step {facts.get('step', 0):,} of {facts.get('steps', 0):,}",
        )
    ]
    loss, entropy = facts.get("held_out_mlm_loss"), facts.get("unigram_entropy")
    if loss is not None:
        rows.append(("held-out MLM loss", f"{loss:.3f} nats a token"))
    if loss is not None and entropy is not None:
        where = "below" if loss < entropy else "above"
        rows.append(
            (
                "unigram entropy of the same text",
                f"{entropy:.3f}: the model is {abs(entropy - loss):.3f} {where}",
            )
        )
    if (accuracy := facts.get("held_out_nsp_accuracy")) is not None:
        counts = facts.get("data", {}).get("held_out", {})
        most = max(counts.get("pairs_is_next", 0), counts.get("pairs_random", 0)) / max(
            counts.get("examples", 0), 1
        )
        rows.append(("held-out NSP accuracy", f"{accuracy:.1%} (always the same answer: {most:.1%})"))
    speeds = sorted(line["tokens_per_s"] for line in lines if "tokens_per_s" in line)
    if speeds:
        rows.append(("tokens/s, median, no padding counted", f"{speeds[len(speeds) // 2]:,.0f}"))
    if "seconds" in facts:
        rows.append(
            ("time", f"{facts['seconds'] / 60:.1f} minutes on {facts['ranks']} ranks, {facts['device']}")
        )
    rows.append(("checkpoints", f"{', '.join(facts['checkpoints']) or 'none'}; all hashes hold"))
    return rows + [(name, where) for name, where in facts["where"].items() if where]


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in facts.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif value not in ("", None, []):
            rows.append((f"{prefix}{key}", value))
    return rows


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def bars(counts: list[int], width: int = 40) -> str:
    """A histogram as text, a line a bin."""
    most = max(counts) or 1
    total = sum(counts) or 1
    return "\n".join(
        f"  {number + 1:>3}/{len(counts)} {'█' * round(width * count / most):<{width}} {count / total:6.1%}"
        for number, count in enumerate(counts)
    )


def words_of(index: Index) -> list[str]:
    """The pieces of the shards' vocabulary, by id."""
    where = index.path(TOKENIZER)
    return parse_tokenizer_json(read_bytes(where).decode("utf-8"), where).tokens


def rendered(examples: Examples, number: int, words: list[str]) -> str:
    """One example as text: what the encoder sees, and what it has to find."""
    span = slice(examples.offsets[number], examples.offsets[number + 1])
    masked = slice(examples.masked_offsets[number], examples.masked_offsets[number + 1])
    shown = " ".join(words[i] for i in examples.tokens[span])
    wanted = " ".join(words[i] for i in examples.masked_ids[masked])
    label = {0: "B follows A", 1: "B is from another document", -1: "one segment"}[
        int(examples.labels[number])
    ]
    return f"one example ({label}):\n  {shown}\nto find:\n  {wanted}"


def _print_examples(index: Index, split: str, count: str, console: Console, as_json: bool) -> None:
    if split not in index.splits:
        raise UserError(f"no split {split!r}", where=index.folder, expected=", ".join(index.splits))
    if count != "all" and not count.isdecimal():
        raise UserError(f"--examples {count}", expected="a number, or all")
    left = index.splits[split].examples if count == "all" else int(count)
    words = [] if as_json else words_of(index)
    for block in BlockReader(index, index.splits[split]).all_blocks():
        for number in range(min(left, len(block))):
            if as_json:
                print(json.dumps(as_instance(block, number)))
            else:
                console.print(escape(rendered(block, number, words)), soft_wrap=True)
        left -= len(block)
        if left <= 0:
            return


def as_instance(examples: Examples, number: int) -> dict[str, Any]:
    """One example with the keys of google-research/bert's instances."""
    span = slice(examples.offsets[number], examples.offsets[number + 1])
    masked = slice(examples.masked_offsets[number], examples.masked_offsets[number + 1])
    length, first = span.stop - span.start, int(examples.first_lengths[number])
    return {
        "input_ids": examples.tokens[span].tolist(),
        "segment_ids": [0] * first + [1] * int(length - first),
        "is_random_next": bool(examples.labels[number] == 1),
        "masked_lm_positions": examples.masked_positions[masked].tolist(),
        "masked_lm_ids": examples.masked_ids[masked].tolist(),
    }
