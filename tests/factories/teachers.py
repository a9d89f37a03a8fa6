"""Make teachers for students of tests: small models of random weights, in Hugging Face folders."""

import json
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import save_file

from data_pipeline.io.files import read_bytes
from data_pipeline.shards.index import TOKENIZER, Index, VocabularyStamp
from launch.recipe import load_config
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Family
from pretrain.huggingface.bert import BERT_FOR_PRETRAINING
from pretrain.huggingface.eurobert import EUROBERT_FOR_MASKED_LM
from pretrain.huggingface.modernbert import MODERNBERT_FOR_MASKED_LM
from pretrain.model.initialize import without_padding
from pretrain.objectives.registry import load, registered
from pretrain.objectives.teacher import has_teacher

_FOLDERS = TemporaryDirectory()
_CLASSES = (BERT_FOR_PRETRAINING, MODERNBERT_FOR_MASKED_LM, EUROBERT_FOR_MASKED_LM)


def with_teacher(config: RunConfig, vocabulary_size: int) -> RunConfig:
    """The same settings, with a teacher that fits them if their objective learns from one."""
    if has_teacher(config):
        group = getattr(config.objective, config.objective.name)
        folder = teacher_folder(astuple(taught_by(config.encoder)), vocabulary_size)
        setattr(group, registered(config.objective.name).teacher, str(folder))
    return config


def teacher_settings(settings: list[str], folder: Path, recipe: str = "demo") -> list[str]:
    """Write a teacher for the student of a recipe with these settings, whose shards are ready, and name it; nothing for
    an objective that learns from none."""
    config = load_config(recipe, settings)
    if not has_teacher(config):
        return []
    index = Index.load(config.data.out)
    folder.mkdir()
    write_bert(folder, RunConfig(encoder=taught_by(config.encoder)), index.vocabulary)
    (folder / TOKENIZER).write_bytes(read_bytes(index.path(TOKENIZER)))
    return [f"objective.{config.objective.name}.{registered(config.objective.name).teacher}={folder}"]


def taught_by(student: EncoderSettings) -> EncoderSettings:
    """The encoder of a teacher with one layer more than `student`, segments where its class has them, and weights far
    from zero."""
    segments = 2 * (student.positions == "learned")
    return replace(student, layers=student.layers + 1, segments=segments, initializer_range=0.3)


@cache
def teacher_folder(encoder: tuple[object, ...], vocabulary_size: int) -> Path:
    """The folder of a BERT, ModernBERT or EuroBERT with such an encoder (EncoderSettings as a tuple)."""
    run = RunConfig(encoder=EncoderSettings(*encoder))  # type: ignore[arg-type]
    family = next(one for one in _CLASSES if not one.inexpressible(one.encoder(run)))
    vocabulary = VocabularyStamp.of_size(vocabulary_size)
    folder = Path(_FOLDERS.name) / str(len(list(Path(_FOLDERS.name).iterdir())))
    folder.mkdir()
    write_bert(folder, run, vocabulary, family)
    return folder


def write_bert(
    folder: Path, run: RunConfig, vocabulary: VocabularyStamp, family: Family = BERT_FOR_PRETRAINING
) -> None:
    """Write config.json and weights of a fresh model of `run` to the folder, as one of `family`."""
    fields = family.config(run, vocabulary)
    described = {**fields, "model_type": family.model_type, "architectures": [family.export_class]}
    (folder / "config.json").write_text(json.dumps(described))
    model = load(run).fresh_model(vocabulary)
    state = without_padding(model, {name: p.detach() for name, p in model.named_parameters()})
    tensors = {name: tensor.contiguous() for name, tensor in family.to_hugging_face(state, fields).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
