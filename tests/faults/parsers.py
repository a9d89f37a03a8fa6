"""The parsers of files from outside, each with good files; a case of each out: one file changed at random and parsed.

A case ends well in one of two ways: a UserError of one line, or a result that is what the unchanged file gives (where
checksums vouch for it) or what the file now says. Anything else is raised.
"""

import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml
from omegaconf import OmegaConf

from data_pipeline.errors import SeveralErrors, UserError, printable
from data_pipeline.fields import value_of
from data_pipeline.io.files import SEAL, canonical_json, sealed_json
from data_pipeline.io.model_folder import CARD, NOTE
from data_pipeline.records import Examples
from data_pipeline.shards.index import Index
from data_pipeline.shards.lint import lint
from data_pipeline.shards.shard import (
    BlockError,
    BlockReader,
    check_examples,
    decode_block,
    encode_block,
    problems,
)
from launch.recipe import load_config, read_changes, setting_names, with_folder_settings
from launch.recipes import RECIPES
from launch.studies.read import read_settings as read_study_settings
from pretrain.checkpoint.store import open_checkpoint, save_checkpoint, sealed
from pretrain.config.settings import RunConfig
from pretrain.config.yaml_files import schema
from pretrain.distributed.world import World
from pretrain.optim.flat_layout import Fragment
from pretrain.report.inspection import describe, run_headlines
from pretrain.run.events import Uploaded, read_attempts
from pretrain.run.files import WANDB
from pretrain.run.folder import read_config, read_run, read_summary
from pretrain.run.metrics_log import cut_metrics, read_metrics
from pretrain.training.progress import Position, position_of
from tests.factories.configs import ALONE, valid_config
from tests.factories.model_folders import READERS, guesses, model_folder
from tests.factories.model_folders import whole as sealed_model
from tests.factories.preparations import silent
from tests.factories.shards import blocks_of, random_examples, shard_folder
from tests.faults.mutations import changed, changed_json
from tests.run_ends import KINDS

REFUSED, TAKEN = "refused", "taken"
Case = Callable[[random.Random], str]


def either(rng: random.Random, data: bytes) -> bytes:
    """Changed as bytes or as JSON."""
    return changed(rng, data) if rng.random() < 0.4 else changed_json(rng, data)


def outcome(action: Callable[[], object]) -> str:
    """TAKEN where `action` comes through, REFUSED where it raises a UserError: of one line, or, where several settings
    are wrong, of one for each below a first one."""
    try:
        action()
    except (UserError, BlockError) as error:
        raised = error
    else:
        return TAKEN
    several = raised.errors if isinstance(raised, SeveralErrors) else ()
    lines = str(raised).splitlines()
    assert len(lines) == 1 + len(several)
    for line in lines:
        assert line.strip()
        assert len(line) < 4000, "a line, not the file"
        assert SECRET not in line
        assert printable(line) == line
    return REFUSED


def same_or_refused(read: Callable[[], object], data: bytes, good: bytes) -> str:
    """What becomes of a sealed file whose bytes are `data` now: refused, or taken for what it says if that is what it
    said. Only one whose seal is gone as a whole passes for one of an older version."""
    found = outcome(read)
    if found == TAKEN:
        says = json.loads(data)
        assert SEAL not in says or canonical_json(says) == canonical_json(json.loads(good)), "a change passed"
    return found


# --- recipes


def recipes(folder: Path) -> Case:
    """A shipped recipe, changed as text or as values; what is taken is a run whose config.yaml says the same."""
    texts = [path.read_bytes() for path in sorted(RECIPES.glob("*.yaml"))]
    as_json = [json.dumps(yaml.safe_load(text)).encode() for text in texts]
    path = folder / "recipe.yaml"

    def case(rng: random.Random) -> str:
        number = rng.randrange(len(texts))
        data = changed(rng, texts[number]) if rng.random() < 0.5 else changed_json(rng, as_json[number])
        path.write_bytes(data)
        return outcome(lambda: same_when_kept(load_config(str(path), []), folder))

    return case


SECRET = "canary-of-the-environment"


def odd_recipes(folder: Path) -> Case:
    """A shipped recipe in which one value, list entry or key is what no setting may be: an interpolation of any form, a
    number of any length beyond 64 bits, a control character. Each is refused at every door, and nothing is resolved."""
    texts = [
        json.dumps(yaml.safe_load(path.read_bytes())).encode() for path in sorted(RECIPES.glob("*.yaml"))
    ]
    path = folder / "recipe.yaml"
    names = setting_names()

    def refused(action: Callable[[], object]) -> None:
        assert outcome(action) == REFUSED

    def case(rng: random.Random) -> str:
        value = odd_value(rng)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        path.write_text(put_in(rng, rng.choice(texts), value), encoding="utf-8")
        with patch.dict(os.environ, {"CANARY": SECRET}):
            refused(lambda: load_config(str(path), []))
            name = rng.choice(names)
            refused(lambda: load_config("demo", [f"{name}=[{text}]"]))
            if isinstance(value, int):
                outcome(lambda: load_config("demo", [f"{name}={value}"]))  # of a text, digits are one
            else:
                refused(lambda: load_config("demo", [f"{name}={value}"]))
                refused(lambda: load_config("demo", [f"phases.{value}.train.steps=3"]))
                refused(lambda: read_changes([f"part={value}"]))
                refused(lambda: read_study_settings([f"run.dir=[{text}]"]))
            (folder / "config.yaml").write_text(put_in(rng, texts[0], value), encoding="utf-8")
            refused(lambda: read_config(folder))
        return REFUSED

    return case


def odd_value(rng: random.Random) -> str | int:
    """Return an interpolation, a number beyond 64 bits or a text with a control character."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice((1, -1)) * rng.randrange(10**19, 10 ** rng.randrange(20, 4000))
    if kind == 1:
        return f"a{chr(rng.choice((*range(9), *range(14, 32), *range(127, 133), *range(134, 160))))}b"
    inner = rng.choice(
        ("oc.env:CANARY", "oc.env:NO_SUCH,1", "oc.decode:[1", "oc.create:{a: 1}", "data.out", ".dir", "")
    )
    for _ in range(rng.choice((0, 0, 1, 3, 40, 2000))):
        inner = f"${{{inner}}}" if rng.random() < 0.5 else f"${{{inner}"
    before, after = rng.choice(("", "a", "\\", "$", "https://host/?")), "}" * rng.randrange(2)
    return f"{before}${{{inner}{after}" * rng.choice((1, 1, 20))


def put_in(rng: random.Random, text: bytes, value: str | int) -> str:
    """Return the JSON of a recipe with `value` in place of one of its values, as an entry, or as a key."""
    recipe = json.loads(text)
    groups = [recipe, *(group for group in recipe.values() if isinstance(group, dict))]
    group = rng.choice(groups)
    keys = [key for key in group if not isinstance(group[key], dict)]
    how = rng.randrange(3)
    if how == 0 and isinstance(value, str):
        group[value] = 1
    elif how == 1:
        group.setdefault("data", {})["sources"] = ["a", value]
    else:
        group[rng.choice(keys) if keys else "extends"] = value
    return json.dumps(recipe, ensure_ascii=rng.random() < 0.5)


def overrides(folder: Path) -> Case:
    """`key=value` for every setting there is, changed."""
    config = load_config("demo", [])
    good = [f"{name}={json.dumps(value_of(config, name))}" for name in setting_names()]
    good += ["data.sources=[a, b]", "optim.betas=[0.9, 0.99]", "phases.a.train.steps=3", "run.dir=~/x"]

    def case(rng: random.Random) -> str:
        text = changed(rng, rng.choice(good).encode()).decode("utf-8", "replace")[:2000]
        return outcome(lambda: same_when_kept(load_config("demo", [text]), folder))

    return case


def configs(folder: Path) -> Case:
    """A config.json of a model to start from, of any class; what is taken states the settings of a run."""
    good = [json.dumps(valid_config(name)).encode() for name in ALONE]
    settings = schema()
    settings.init_from = str(folder)

    def case(rng: random.Random) -> str:
        (folder / "config.json").write_bytes(either(rng, rng.choice(good)))
        return outcome(lambda: OmegaConf.to_object(with_folder_settings(settings, set())))

    return case


def same_when_kept(config: RunConfig, folder: Path) -> None:
    """What config.yaml of a run folder keeps of the settings reads as these."""
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)), encoding="utf-8")
    assert repr(read_config(folder)) == repr(config)


# --- shards


class Shards:
    """A folder of two shards and one set aside, what it holds, and a way to read it again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shards"
        index, _ = shard_folder(self.folder, [21, 5], held_out=(4,))
        self.files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        self.examples = {
            name: list(BlockReader(index, split).all_blocks()) for name, split in index.splits.items()
        }
        self._changed: list[str] = []

    @contextmanager
    def with_files(self, files: dict[str, bytes]) -> Iterator[None]:
        """The folder with some of its files changed, and as it was afterwards."""
        for name, data in files.items():
            (self.folder / name).write_bytes(data)
        try:
            yield
        finally:
            for name in files:
                (self.folder / name).write_bytes(self.files[name])

    def read(self) -> None:
        """Raises UserError for what is damaged; what is read must be what was written."""
        index = Index.load(self.folder)
        found = list(problems(index))
        for error in found:
            assert "\n" not in str(error)
        for split in index.splits.values():
            files = [shard.file for shard in split.shards]
            reader = BlockReader(index, split)
            for number, file in enumerate(files):
                original = self.examples["train" if file.startswith("train") else "held_out"]
                first = 3 * (file == "train-000001.tar")
                for block in range(split.shards[number].blocks):
                    [examples] = reader.read([(number, block)])
                    assert examples == original[first + block], f"{file}, block {block}"
        if found:
            raise found[0]
        lint(index, silent)

    def resealed(self, table: bytes) -> dict[str, bytes]:
        """The files with another block table that index.json vouches for."""
        document = json.loads(self.files["index.json"])
        document["splits"]["train"][0]["block_table_sha256"] = hashlib.sha256(table).hexdigest()
        return {"train-000000.json": table, "index.json": sealed_json(document)}


def indexes(folder: Path) -> Case:
    """index.json, then all shards by what it says now."""
    shards = Shards(folder)

    def case(rng: random.Random) -> str:
        data = either(rng, shards.files["index.json"])
        with shards.with_files({"index.json": data}):
            return (
                outcome(shards.read)
                if rng.random() < 0.3
                else same_or_refused(lambda: Index.load(shards.folder), data, shards.files["index.json"])
            )

    return case


def unsealed_indexes(folder: Path) -> Case:
    """index.json of an older version, then all shards by what it says now."""
    shards = Shards(folder)
    document = json.loads(shards.files["index.json"])
    del document[SEAL]

    def case(rng: random.Random) -> str:
        with shards.with_files({"index.json": either(rng, canonical_json(document, indent=1))}):
            return outcome(shards.read)

    return case


def tables(folder: Path) -> Case:
    """A block table, with the SHA-256 of it that index.json has, or one that vouches for the change."""
    shards = Shards(folder)

    def case(rng: random.Random) -> str:
        table = either(rng, shards.files["train-000000.json"])
        files = shards.resealed(table) if rng.random() < 0.7 else {"train-000000.json": table}
        with shards.with_files(files):
            return outcome(shards.read)

    return case


def tars(folder: Path) -> Case:
    """The bytes of a shard: read block by block, as training reads, and as a whole."""
    shards = Shards(folder)

    def case(rng: random.Random) -> str:
        name = rng.choice(["train-000000.tar", "train-000001.tar", "held_out-000000.tar"])
        with shards.with_files({name: changed(rng, shards.files[name])}):
            return outcome(shards.read)

    return case


def blocks(folder: Path) -> Case:
    """The bytes of one block, past its checksum: what is taken points nowhere outside itself."""
    sizes = ((40, 24, 300), (3, 4, 60_000), (9, 300, 100_000))
    whole = [
        encode_block(n, random_examples(count, n, most, size)) for n, (count, most, size) in enumerate(sizes)
    ]

    def case(rng: random.Random) -> str:
        number = rng.randrange(len(whole))
        data = np.frombuffer(bytearray(changed(rng, whole[number])), np.uint8)

        def decoded() -> None:
            examples = decode_block(number, data)
            check_examples(examples, sizes[number][2], sizes[number][1])
            within(examples, sizes[number][2])

        return outcome(decoded)

    return case


def within(found: Examples, vocabulary: int) -> None:
    """The same bounds as check_examples, said again in numpy."""
    for offsets, column in ((found.offsets, found.tokens), (found.masked_offsets, found.masked_ids)):
        assert offsets[0] == 0
        assert offsets[-1] == len(column)
        assert (np.diff(offsets) >= 0).all()
        assert (column < vocabulary).all()
    lengths = np.diff(found.offsets)
    owners = np.repeat(np.arange(len(lengths)), np.diff(found.masked_offsets))
    assert (found.masked_positions < lengths[owners]).all()
    assert (found.first_lengths <= lengths).all()
    assert np.isin(found.labels, (-1, 0, 1)).all()
    assert blocks_of(found, 8)


# --- checkpoints


class Saved:
    """A checkpoint like that of a run of two layers, its tensors, and a way to read it again."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(1)
        import torch

        def piece(kind: str, name: str, start: int, count: int) -> Fragment:
            return Fragment(
                kind, name, start, torch.from_numpy(rng.standard_normal(count).astype(np.float32))
            )

        shapes = {"a.weight": [6, 5], "a.bias": [5], "b.weight": [3, 2, 2]}
        cuts = (("a.weight", 0, 7), ("a.weight", 7, 23), ("a.bias", 0, 5), ("b.weight", 0, 12))
        fragments = [piece(kind, *cut) for kind in KINDS for cut in cuts]
        position = Position(batch=9, step=7, skipped=[2, 3], examples=108, tokens=1234, losses=[5.5, 5.25])
        state = {
            "identity": {"optim.lr": 0.01, "data": "0" * 64},
            "held_out_loss": 5.1,
            "position": vars(position),
            "phase": {"name": "", "first": 0, "last": 10},
            "loader": {"batch": 9, "data": "0" * 64, "order": {"examples": 100, "sequential": False}, "masking": None},
            "updates": 7,
            "scaler": {"cur_scale": 65536.0, "cur_iter": 9},
            "conditions": {"ranks": 2, "torch": "2.13"},
            "config": {"optim": {"lr": 0.01}},
        }  # fmt: skip
        (folder / "run").mkdir()
        self.folder = save_checkpoint(folder / "run", 7, fragments, shapes, state, World())
        self.marker = self.folder / "checkpoint.json"
        self.fragments = self.folder / "fragments-00000.safetensors"
        self.good = {path: path.read_bytes() for path in (self.marker, self.fragments)}
        self.whole = open_checkpoint(self.folder)
        self.tensors = {(n, k): self.whole.tensor(n, k) for n in shapes for k in KINDS}

    @contextmanager
    def with_files(self, files: dict[Path, bytes]) -> Iterator[None]:
        """The folder with some of its files changed, and as it was afterwards."""
        for path, data in files.items():
            path.write_bytes(data)
        try:
            yield
        finally:
            for path in files:
                path.write_bytes(self.good[path])

    def read(self, vouched: bool) -> None:
        """All of it, as a resume does. Where nothing vouches for a change, what is read must be what was written."""
        checkpoint = open_checkpoint(self.folder)
        checkpoint.verify()
        position = position_of(checkpoint)
        found = {(n, k): checkpoint.tensor(n, k) for n in checkpoint.shapes for k in KINDS}
        if not vouched:
            same = (checkpoint.step, checkpoint.state, checkpoint.shapes, checkpoint.files)
            assert same == (self.whole.step, self.whole.state, self.whole.shapes, self.whole.files)
            assert position == position_of(self.whole)
            assert found.keys() == self.tensors.keys()
            assert all(found[key].equal(self.tensors[key]) for key in found)


def markers(folder: Path) -> Case:
    """checkpoint.json with the SHA-256 that it has."""
    saved = Saved(folder)

    def case(rng: random.Random) -> str:
        with saved.with_files({saved.marker: either(rng, saved.good[saved.marker])}):
            return outcome(lambda: saved.read(vouched=False))

    return case


def lying_markers(folder: Path) -> Case:
    """checkpoint.json sealed anew after the change."""
    saved = Saved(folder)
    said = {key: value for key, value in json.loads(saved.good[saved.marker]).items() if key != "sha256"}
    text = json.dumps(said).encode()

    def case(rng: random.Random) -> str:
        try:
            values = json.loads(changed_json(rng, text))
        except (ValueError, RecursionError):
            return REFUSED
        if not isinstance(values, dict):
            return REFUSED
        with saved.with_files({saved.marker: sealed(values)}):
            return outcome(lambda: saved.read(vouched=True))

    return case


def fragments(folder: Path) -> Case:
    """A file of tensors: as bytes, or the JSON at its head; with the SHA-256 that the marker has, or one that holds."""
    saved = Saved(folder)
    good, said = saved.good[saved.fragments], json.loads(saved.good[saved.marker])
    head = int.from_bytes(good[:8], "little")

    def case(rng: random.Random) -> str:
        if rng.random() < 0.5:
            data = changed(rng, good)
        else:
            text = changed_json(rng, good[8 : 8 + head])
            data = len(text).to_bytes(8, "little") + text + good[8 + head :]
        files = {saved.fragments: data}
        if vouched := rng.random() < 0.7:
            entry = {
                "file": saved.fragments.name,
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
            files[saved.marker] = sealed(said | {"files": [entry]})
        with saved.with_files(files):
            return outcome(lambda: saved.read(vouched))

    return case


# --- run folders


def run_folders(folder: Path) -> Case:
    """run.json, summary.json, config.yaml or metrics.jsonl, then what `inspect`, `train` and `export` read of them."""
    run = folder / "run"
    saved = Saved(folder)
    lines: list[dict[str, Any]] = [
        {"kind": "train", "step": n, "loss": 5.0 - n / 10, "lr": 1e-3, "tokens_per_s": 1e4, "seconds": 3.0 * n}
        for n in range(1, 8)
    ]  # fmt: skip
    lines.append(
        {
            "kind": "eval",
            "step": 7,
            "held_out_loss": 5.1,
            "held_out_mlm_loss": 5.0,
            "held_out_mask_loss": 5.2,
            "held_out_mask_unigram_loss": 5.6,
            "held_out_mask_top_share": 0.6,
            "held_out_mask_top_token": ",",
        }
    )
    good = {
        "run.json": json.dumps({"format": 2, "identity": {"optim.lr": 0.01}, "id": "abc", "attempts": 2}).encode(),
        "summary.json": json.dumps({
            **lines[-2], **lines[-1], "status": "stopped", "steps": 10, "ranks": 2, "device": "cpu", "seconds": 21.0,
            "held_out_nsp_accuracy": 0.7,
            "data": {"held_out": {"examples": 9, "pair_labels": {"is_next": 5, "not_next": 4}}},
            "phases": [{"name": "a", "last": 10, "global_batch": 8, "sequence_length": 32, "lr": 0.1}],
        }).encode(),
        "config.yaml": json.dumps({"train": {"steps": 10}, "optim": {"lr": 0.01}, "run": {"dir": str(run)}}).encode(),
        "metrics.jsonl": b"".join(json.dumps(line).encode() + b"\n" for line in lines),
        "events.jsonl": b'{"event": "uploaded", "to": "wandb", "lines": 5}\n',
    }  # fmt: skip
    for name, data in good.items():
        (run / name).write_bytes(data)
    assert saved.whole

    def case(rng: random.Random) -> str:
        name = rng.choice(list(good))
        if name == "metrics.jsonl" and rng.random() < 0.7:
            rows = good[name].splitlines()
            at = rng.randrange(len(rows))
            data = b"\n".join([*rows[:at], changed_json(rng, rows[at]), *rows[at + 1 :]])
        else:
            data = changed(rng, good[name]) if name == "metrics.jsonl" else either(rng, good[name])
        (run / name).write_bytes(data)
        try:
            return outcome(lambda: used(run))
        finally:
            for other in ("metrics.jsonl", "events.jsonl", name):
                (run / other).write_bytes(good[other])

    return case


def sealed_run_files(folder: Path) -> Case:
    """run.json or summary.json, sealed; one byte in three cases of four."""
    good = {
        "run.json": sealed_json({"format": 2, "identity": {"optim.lr": 0.01}, "id": "abc", "attempts": 2}),
        "summary.json": sealed_json({
            "status": "finished", "step": 10, "steps": 10, "loss": 4.5, "held_out_loss": 5.1, "seconds": 21.0,
            "device": "cpu", "data": {"held_out": {"examples": 9, "pair_labels": {"is_next": 5}}},
            "phases": [{"name": "a", "last": 10, "global_batch": 8, "sequence_length": 32, "lr": 0.1}],
        }),
    }  # fmt: skip

    def case(rng: random.Random) -> str:
        name = rng.choice(list(good))
        data = bytearray(good[name])
        if rng.random() < 0.75:
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        else:
            data = bytearray(either(rng, good[name]))
        (folder / name).write_bytes(data)
        reader = read_run if name == "run.json" else read_summary
        return same_or_refused(lambda: reader(folder), bytes(data), good[name])

    return case


def used(run: Path) -> None:
    """What verbs make of a run folder's files."""
    facts = describe(run)
    json.dumps(facts)
    assert all(isinstance(text, str) for row in run_headlines(facts, read_metrics(run)) for text in row)
    read_run(run), read_summary(run), read_config(run), read_attempts(run), Uploaded.read(run, WANDB)
    whole = read_metrics(run)
    with redirect_stderr(io.StringIO()):  # warns of damaged lines
        cut_metrics(run, 4)
    assert all(line.get("step", 0) <= 4 for line in read_metrics(run))
    assert len(read_metrics(run)) <= len(whole)


# --- model folders


def models(folder: Path) -> Case:
    """Any file of a model folder, then one verb that reads it; where maskmill.json vouches for the files, a changed one
    is refused by all."""
    good = model_folder(folder / "good")
    sealed_model(good)
    files = {path.name: path.read_bytes() for path in sorted(good.iterdir())}
    slow = ("evaluate cola", "evaluate features")
    readers = {name: read for name, read in READERS.items() if name not in slow}
    readers["fill"] = lambda model, out: guesses(model)  # which another file of weights makes others

    def case(rng: random.Random) -> str:
        name, verb, sealed = rng.choice(sorted(files)), rng.choice(list(readers)), rng.random() < 0.3
        data = (
            changed(rng, files[name])
            if name.endswith((".txt", ".safetensors", ".md"))
            else either(rng, files[name])
        )
        model, out = folder / "model", folder / "out"
        for path in (model, out):
            shutil.rmtree(path, ignore_errors=True)
        model.mkdir()
        for other, content in files.items():
            if sealed or other != NOTE:
                (model / other).write_bytes(content)
        (model / name).write_bytes(data)
        found = outcome(lambda: readers[verb](model, out))
        if sealed and data != files[name] and name not in (NOTE, CARD):
            headers_alone = verb in ("teacher", "vocab", "vocab --extend") and name.endswith(".safetensors")
            assert found == REFUSED or headers_alone, f"{verb} takes {name}"
        return found

    return case


PARSERS: dict[str, tuple[Callable[[Path], Case], str, int]] = {
    "recipes": (recipes, "a recipe's YAML", 2),
    "odd recipes": (odd_recipes, "a recipe with an interpolation, a huge number or a control character", 2),
    "overrides": (overrides, "`key=value`", 2),
    "configs": (configs, "`config.json` of a model to start from", 4),
    "index": (indexes, "`index.json`, under its SHA-256", 12),
    "unsealed index": (unsealed_indexes, "`index.json` without one", 6),
    "tables": (tables, "block tables", 8),
    "tars": (tars, "shards, under their checksums", 8),
    "blocks": (blocks, "blocks, past their checksums", 40),
    "markers": (markers, "`checkpoint.json`, under its SHA-256", 14),
    "lying markers": (lying_markers, "`checkpoint.json`, sealed anew", 10),
    "fragments": (fragments, "`fragments-*.safetensors`", 10),
    "seals": (sealed_run_files, "`run.json`, `summary.json`, under their SHA-256", 12),
    "models": (models, "any file of a model folder", 1),
    "run folders": (run_folders, "`run.json`, `summary.json`, `config.yaml`, `metrics.jsonl`", 2),
}
"""Name -> what makes a case of it, what is changed, and its share of the cases."""
