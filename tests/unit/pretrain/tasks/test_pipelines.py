"""Fine-tuned models of transformers: our answers are those of its own pipeline, or of what it documents instead."""

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pretrain.evaluate.fine_tune import FineTuner
from pretrain.tasks.base import ModelAnswers, TaskData
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.files import Split
from pretrain.tasks.questions import ANSWER_TOKENS, BEST, QUESTIONS, STEP, Question
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import EvaluationSettings
from pretrain.tasks.tagging import Sentence, Tagging
from tests.factories.encoders import encoder_folder

FAMILIES = ("bert", "roberta", "albert", "discriminator", "distilbert", "xlnet", "modernbert")
TAGS = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")
SENTENCES = [
    Sentence(tuple(text.split()), ("O",) * len(text.split()))
    for text in (
        "the quick fox jumped over it",
        "dogs , said the U.S. fox -- slept",
        "some others did not jump over the lazy dogs at all .",
        "foxes",
    )
]
TEXT = "the quick fox jumped over some lazy dogs, that slept all day in the U.S. and did not wake up at all."
QUESTIONS_OF = ["who slept?", "what did the fox jump over?", "where did the dogs sleep all day?", "when?"]
SETTINGS = EvaluationSettings(epochs=0, threads=1)


def tuned(name: str, kind: str, folder: Path, labels: tuple[str, ...]) -> Path:
    """A task model of random weights, so wide that its answers differ."""
    source = encoder_folder(name)
    torch.manual_seed(3)
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
        source, id2label=dict(enumerate(labels))
    )
    heads = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    heads[-1].weight.data.normal_()
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def answered(task: Any, folder: Path, items: list[Any], data: TaskData, max_length: int) -> tuple[Any, ...]:
    encoder = Encoder(folder)
    model, data = task.finished_model(encoder, data, SETTINGS)
    builder = encoder.builder(max_length)
    features = task.features(items, builder, data)
    tuner = FineTuner(task, model, builder, SETTINGS, 1, torch.device("cpu"))
    return features, tuner.answers(features, lambda n: None), data


def our_tags(folder: Path) -> list[list[str]]:
    task = FINE_TUNED["tagging"]
    assert isinstance(task, Tagging)
    data = TaskData(Split("train", []), (Split("dev", SENTENCES),), TAGS)
    features, answers, data = answered(task, folder, SENTENCES, data, 64)
    return task.predicted(ModelAnswers(SENTENCES, features, answers, data))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_word_has_the_tag_that_the_pipeline_gives_its_first_token(name: str, tmp_path: Path) -> None:
    folder = tuned(name, "TokenClassification", tmp_path / "model", TAGS)
    tag = transformers.pipeline(
        "token-classification", model=str(folder), device="cpu", aggregation_strategy="none", ignore_labels=[]
    )
    found = our_tags(folder)
    for sentence, ours in zip(SENTENCES, found, strict=True):
        text, place, theirs = " ".join(sentence.words), 0, []
        tokens = tag(text)
        for word in sentence.words:
            # by its end, since a token may hold the space before its word, or be that space alone
            owned = [t for t in tokens if place <= t["end"] <= place + len(word)]
            theirs.append(owned[0]["entity"])
            place += len(word) + 1
        assert ours == theirs
    assert len({one for tags in found for one in tags}) > 2


def entities(tags: list[str], words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Type and text of each run of tags, as the pipeline joins them: B- begins another one."""
    numbers, number = [], 0
    for i, tag in enumerate(tags):
        number += i > 0 and (tag.startswith("B-") or tag[2:] != tags[i - 1][2:])
        numbers.append(number)
    runs = [[i for i, _ in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1])]
    return [(tags[run[0]][2:], " ".join(words[i] for i in run)) for run in runs if tags[run[0]] != "O"]


def test_entities_are_those_of_the_pipeline_that_is_given_words(tmp_path: Path) -> None:
    folder = tuned("bert", "TokenClassification", tmp_path / "model", TAGS)
    tag = transformers.pipeline(
        "token-classification", model=str(folder), device="cpu", aggregation_strategy="first"
    )
    for sentence, ours in zip(SENTENCES, our_tags(folder), strict=True):
        text = " ".join(sentence.words)
        if "U.S." in sentence.words:  # four words to the pipeline
            continue
        (theirs,) = tag(list(sentence.words), is_split_into_words=True)
        assert entities(ours, sentence.words) == [
            (one["entity_group"], text[one["start"] : one["end"]]) for one in theirs
        ]


@torch.no_grad()
def documented(folder: Path, item: Question, max_length: int, shared: int) -> tuple[str, bool]:
    """The answer to a question, and whether none is likelier, as transformers' guide to models of questions says: the
    tokenizer cuts windows, the best pair of BEST starts and ends of each is taken by the sum of its logits, and none
    where the lowest sum at [CLS] is higher. Starts count in the window that has most text around them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    text_first = tokenizer.padding_side == "left"
    texts = (item.context, item.question) if text_first else (item.question, item.context)
    read = tokenizer(
        *texts,
        truncation="only_first" if text_first else "only_second",
        max_length=max_length,
        stride=shared,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    spans = [
        {
            i: tuple(read["offset_mapping"][n][i])
            for i, owner in enumerate(read.sequence_ids(n))
            if owner == (0 if text_first else 1)
        }
        for n in range(len(read["input_ids"]))
    ]

    def context(window: int, token: int) -> float:
        return min(token - min(spans[window]), max(spans[window]) - token) + 0.01 * len(spans[window])

    def is_widest(window: int, token: int) -> bool:
        others = [
            (n, i) for n, of in enumerate(spans) for i, span in of.items() if span == spans[window][token]
        ]
        return (window, token) == max(others, key=lambda other: context(*other))  # the first of equal ones

    found, null = [], np.inf
    for n, ids in enumerate(read["input_ids"]):
        arrays = {name: torch.tensor([read[name][n]]) for name in tokenizer.model_input_names if name in read}
        output = model(**arrays)
        start, end = output.start_logits[0].numpy(), output.end_logits[0].numpy()
        at = ids.index(tokenizer.cls_token_id)
        null = min(null, start[at] + end[at])
        for i in np.argsort(-start)[:BEST]:
            for j in np.argsort(-end)[:BEST]:
                if i in spans[n] and j in spans[n] and 0 <= j - i < ANSWER_TOKENS and is_widest(n, i):
                    found.append((start[i] + end[j], item.context[spans[n][i][0] : spans[n][j][1]].strip()))
    score, text = max(pair for pair in found if pair[1])
    return text, bool(null > score)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("is_long", [False, True])
def test_answers_are_those_of_the_documented_decoding(name: str, is_long: bool, tmp_path: Path) -> None:
    folder = tuned(name, "QuestionAnswering", tmp_path / "model", ("start", "end"))
    texts = [(TEXT[7 * i :] * 6 if is_long else TEXT[9 * i :][:30]).strip() for i in range(len(QUESTIONS_OF))]
    items = [Question("1", question, text, ()) for question, text in zip(QUESTIONS_OF, texts, strict=True)]
    task, max_length = QUESTIONS[1], 56
    data = TaskData(Split("train", []), (Split("dev", items),))
    features, answers, _ = answered(task, folder, items, data, max_length)
    assert len(features) > 4 * len(items) if is_long else len(features) == len(items)
    found = task.candidates(ModelAnswers(items, features, answers, data))
    builder = Encoder(folder).builder(max_length)
    for item, ours in zip(items, found, strict=True):
        room = max_length - builder.special_pair - len(builder.encoded(item.question))
        shared = room - min(STEP, max(1, room // 2))
        assert (ours.text, bool(ours.no_answer > 0)) == documented(folder, item, max_length, shared)
    assert len({one.text for one in found}) > 1
