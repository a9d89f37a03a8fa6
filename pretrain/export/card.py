"""Write the model card, README.md of the exported folder, from the run's own records.

A card is published: it shows only the last name of files and folders, nothing in URIs that could be secret, and only
the settings that decide the result. Its sentence with a blank is never one of the model's text, which may be private.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from data_pipeline.errors import redact_settings
from data_pipeline.io.model_folder import weights_hash
from data_pipeline.shards.index import Index
from data_pipeline.sources.snapshot import name_only, source_names
from pretrain.checkpoint.store import Checkpoint
from pretrain.config.settings import RunConfig, ScheduleSettings, TrainSettings
from pretrain.export.hub import PLACEHOLDER, front_matter
from pretrain.export.lineage import Parent, parent_of
from pretrain.export.parity import Parity
from pretrain.huggingface.base import Family
from pretrain.preflight.gpus import data_sheet
from pretrain.run.events import Attempt, read_attempts
from pretrain.run.files import is_number
from pretrain.run.folder import read_run, read_summary
from pretrain.run.human import markdown
from pretrain.run.learning import findings, with_majority
from pretrain.run.metrics import HELD_OUT, headline_of, leading, secondary
from pretrain.run.metrics_log import read_metrics
from pretrain.run.task_scores import ABOUT_SCORES, HEADS, TaskScore, read_task_scores

# The section on how to reproduce the model, without private data.

PLACES = ("sources", "out", "vocab", "lexicon", "shards", "init_from")
"""Settings that name files or folders."""
NO_PART_OF_A_RECIPE = {
    "data": ("workers", "executor", "scheduler", "work", "tokens", "verify", "on_damage"),
    "run": (
        "dir",
        "ranks",
        "threads",
        "stop_after",
        "restarts",
        "restart_delay",
        "step_timeout",
        "stage_limit",
        "folder_wait",
    ),
    "checkpoint": None,
    "monitor": None,
    "export": None,
}
"""Groups or settings that define where and how a run is executed, not what it learns."""


def reproduce(whole: RunConfig, index: Index, summary: Mapping[str, Any]) -> str:
    """Return the recipe and the commands that reproduce the model from the same text."""
    versions = ", ".join(f"{name} {number}" for name, number in dict(summary.get("versions") or {}).items())
    return _REPRODUCE.format(
        recipe=recipe_yaml(whole), index=index.identity, versions=versions or "not recorded"
    )


_REPRODUCE = """\
Save these settings as `recipe.yaml` and put your own folders in: of files and folders only the last name is given.

```yaml
{recipe}```

```
maskmill vocab recipe.yaml      # or the tokenizer.json of this model as data.vocab
maskmill prepare recipe.yaml    # its index.json has the SHA-256 {index}
maskmill train recipe.yaml
maskmill export recipe.yaml
```

The same text gives the same shards, byte for byte. On the same build, kind of device, number of ranks and threads
the weights are the same bit for bit; elsewhere within rounding, with other draws of dropout. Versions: {versions}."""


def recipe_yaml(config: RunConfig) -> str:
    """Return a recipe of the non-default settings that decide what is learnt, with only the last names of files and
    folders."""
    differing = _differing(asdict(config), asdict(RunConfig()))
    return yaml.safe_dump(redact_settings(_named(differing)), sort_keys=False, allow_unicode=True, width=100)


def _differing(values: Mapping[str, Any], defaults: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    left_out = NO_PART_OF_A_RECIPE.get(group) or ()
    different: dict[str, Any] = {}
    for key, value in values.items():
        if (not group and NO_PART_OF_A_RECIPE.get(key, ()) is None) or key in left_out:
            continue
        if isinstance(value, dict):
            if inner := _differing(value, defaults[key], key):
                different[key] = inner
        elif value != defaults[key]:
            different[key] = value if key != "phases" else [_learnt(phase) for phase in value]
    return different


def _learnt(phase: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {k: v for k, v in value.items() if k not in (NO_PART_OF_A_RECIPE.get(key) or ())}
        if isinstance(value, dict)
        else value
        for key, value in phase.items()
    }


def _named(values: Any) -> Any:
    """Replace every file and folder by its last name."""
    if isinstance(values, list):
        return [_named(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {key: _places(value) if key in PLACES else _named(value) for key, value in values.items()}


def _places(value: Any) -> Any:
    return [name_only(str(v)) for v in value] if isinstance(value, list) else name_only(str(value))


# The energy, a range estimated from device-hours, with its assumptions.
#
# kWh = device-hours x maximum power of the device x load x PUE. Nothing is measured, so load and PUE are ranges, and
# so is the result. There is no estimate for a device that is not in DATA_SHEETS (preflight/gpus.py).

LOAD = (0.5, 1.0)
"""Share of the maximum power that a device draws in training."""
PUE = (1.1, 1.58)
"""PUE, total power per watt of the machines: from a cloud's fleet (Patterson et al. 2021) to the world average of 2018
(Strubell et al. 2019, section 2)."""
FORMULA = (
    "kWh = GPU-hours x highest power of the GPU (its data sheet) x load x PUE / 1000, with a load of"
    f" {LOAD[0]} to {LOAD[1]:.0f} and a PUE of {PUE[0]} (Patterson et al. 2021) to {PUE[1]} (Strubell et al. 2019)."
    " Nothing was metered. GPUs alone, without the processors, memory and network around them and without the trials"
    " before this run"
)


class Energy(NamedTuple):
    """Minimum and maximum in kWh."""

    least: float
    most: float


def watts(device: str) -> int | None:
    """Return the maximum power of the GPU with the CUDA name `device`; None if unknown."""
    sheet = data_sheet(device)
    return sheet.watts if sheet else None


def estimate(attempts: Iterable[Attempt]) -> Energy | None:
    """Estimate the energy of these attempts; None if a device is unknown, since a partial sum misleads."""
    hours = 0.0  # kW x h, before load and overhead
    for attempt in attempts:
        power = watts(attempt.device) if attempt.device_type == "cuda" else None
        if power is None:
            return None
        hours += attempt.device_hours * power / 1000
    return Energy(hours * LOAD[0] * PUE[0], hours * LOAD[1] * PUE[1])


# A sentence with a blank in the language of the model's text. Where no language is stated, the text shows one: by its
# script, or by the words that every text of a language has.

BLANK = "{mask}"
SENTENCES = {
    "en": "She opened the {mask} and went out.",
    "de": "Sie öffnete die {mask} und ging hinaus.",
    "fr": "Elle ouvrit la {mask} et sortit.",
    "es": "Ella abrió la {mask} y salió.",
    "it": "Aprì la {mask} e uscì.",
    "pt": "Ela abriu a {mask} e saiu.",
    "nl": "Ze opende de {mask} en ging naar buiten.",
    "sv": "Hon öppnade {mask} och gick ut.",
    "da": "Hun åbnede {mask} og gik ud.",
    "pl": "Otworzyła {mask} i wyszła.",
    "cs": "Otevřela {mask} a vyšla ven.",
    "ru": "Она открыла {mask} и вышла.",
    "fi": "Hän avasi {mask} ja meni ulos.",
    "zh": "她打开{mask}走了出去。",
    "ja": "彼女は{mask}を開けて出て行った。",
    "uk": "Вона відчинила {mask} і вийшла.",  # noqa: RUF001
    "el": "Άνοιξε την {mask} και βγήκε έξω.",
    "ar": "فتحت {mask} وخرجت.",
    "hi": "उसने {mask} खोला और बाहर चली गई।",
    "ko": "그녀는 {mask} 열고 나갔다.",
    "tr": "Kadın {mask} açtı ve çıktı.",  # noqa: RUF001
}
"""By ISO 639-1 code."""


def sentence_for(languages: Iterable[str]) -> str | None:
    """Return a sentence with one BLANK in the first stated language that is known; English if none is stated, None if
    none of those stated is known."""
    stated = [language.lower().partition("-")[0] for language in languages]
    if not stated:
        return SENTENCES["en"]
    return next((SENTENCES[language] for language in stated if language in SENTENCES), None)


_WORDS = {
    "en": "the of and to in is that was for with as his on be by this are from which",
    "de": "der die und den das nicht von ist des sich mit dem ein zu auf eine im auch als wird",
    "fr": "de la le les et des est une du que dans qui pour pas sur au plus par ce avec",
    "es": "de la que el en los del las por con una para su es lo como pero sus al era",
    "it": "di che la il un per non sono della con una del si nel alla dei piu anche gli era",
    "pt": "de que os do da em um para com nao uma no na por mais as dos como mas ao",
    "nl": "de het een van en dat niet te zijn op voor met die aan er hij ook maar bij werd",
    "sv": "och att det som en pa ar av for den med till inte han om ett var jag hade hon",
    "da": "og det at en den til er som pa af de med han ikke der var jeg et hun blev",
    "pl": "nie sie na to jest do ze jak za od po ale czy tak tym przez byl tego jego przy",
    "cs": "se na je ze to byl pro jako jeho ale by jsem nebo tak byla jsou bylo podle roce mezi",
    "fi": "ja on ei se etta oli han mutta kun niin ovat myos joka kuin sen mita vain tai olla jo",
    "tr": "bir bu da ne icin ile cok ama gibi daha olarak var kadar o sonra olan ya ben degil her",
}
"""Frequent words of languages of the Latin script, without accents."""
_SCRIPTS = (
    ("HIRAGANA", "ja"), ("KATAKANA", "ja"), ("HANGUL", "ko"), ("CJK", "zh"), ("CYRILLIC", "ru"), ("GREEK", "el"),
    ("ARABIC", "ar"), ("DEVANAGARI", "hi"),
)  # fmt: skip
"""First word of a letter's Unicode name -> a language of that script; of two that a text has, the first one here."""
_UKRAINIAN = frozenset("іїєґ")
_LEAST_OF_SCRIPT, _LEAST_WORDS = 0.3, 20
"""Of the letters that must be of a script, and how many frequent words must be of a language."""


def language_of(texts: Iterable[str]) -> str:
    """Return the language of SENTENCES that the texts show; empty if they show none clearly. Persian and Urdu count as
    Arabic, Marathi and Nepali as Hindi: the sentence that follows is at least in their script."""
    words, scripts, letters = Counter[str](), Counter[str](), 0
    ukrainian = 0
    for text in texts:
        for letter in text.lower():
            if letter.isalpha():
                letters += 1
                scripts[unicodedata.name(letter, " ").split(" ")[0].split("-")[0]] += letter > "\u02ff"
                ukrainian += letter in _UKRAINIAN
        bare = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(c))
        words.update(re.findall(r"[a-z]+", bare))
    of_script = {script: scripts[script] for script, _ in _SCRIPTS}
    if letters and sum(of_script.values()) > _LEAST_OF_SCRIPT * letters:
        language = next(language for script, language in _SCRIPTS if of_script[script] > 0.05 * letters)
        return "uk" if language == "ru" and ukrainian > 0.02 * letters else language
    hits = Counter(
        {language: sum(words[word] for word in listed.split()) for language, listed in _WORDS.items()}
    )
    (best, most), (_, second) = hits.most_common(2)
    return best if most >= _LEAST_WORDS and most > 1.3 * second else ""


# The card and its README.md.

Facts = Mapping[str, "str | Mapping[str, object]"]
"""Section title -> a paragraph, or a table of names and values."""


@dataclass(frozen=True)
class Card:
    """The card's content beyond what the export itself knows."""

    facts: Facts
    title: str = ""
    """Empty: the name of the folder."""
    languages: tuple[str, ...] = ()
    """ISO 639 codes, if stated."""
    spoken: str = ""
    """The language that its text shows where none is stated; empty: unknown."""
    parent: Parent | None = None
    """What its training started from; None: from raw text."""
    license: str = ""
    """Empty: not stated."""
    step: int = 0
    """Step of the run at which its checkpoint was saved."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Name of a figure -> its value on held-out text, for the card's metadata."""
    tasks: Sequence[TaskScore] = ()
    """What models of the run scored on tasks; the card has those of the very weights that it describes."""


_USE = """
# {title}

{what} {origin} with Maskmill, and is a plain `transformers` model; no code of its own is needed.

## How to use it

`{placeholder}` is this folder, or the model's name on the hub.{pipeline}

Vectors of a text's tokens, to fine-tune or to look at; and the model with all its heads:

```python
from transformers import AutoModel, AutoTokenizer, {export_class}

tokenizer = AutoTokenizer.from_pretrained("{placeholder}")
encoder = AutoModel.from_pretrained("{placeholder}")
vectors = encoder(**tokenizer("A sentence to encode.", return_tensors="pt")).last_hidden_state
model = {export_class}.from_pretrained("{placeholder}")
```
"""
_PIPELINES = {
    "fill-mask": """ Fill a blank:

```python
from transformers import pipeline

fill = pipeline("fill-mask", model="{placeholder}")
guesses = fill(f"{sentence}"){comment}
```""",
    "text-generation": """ Continue a text:

```python
from transformers import pipeline

write = pipeline("text-generation", model="{placeholder}")
texts = write(f"{{write.tokenizer.cls_token}} {opening}", add_special_tokens=False){comment}
```""",
    "": "",
}
"""The snippet that the card shows for each pipeline of transformers."""
LIMITS = """\
A pretrained encoder is a starting point: fine-tune it for a task and measure it there. Beyond the figures above
nothing was measured: {unmeasured}no robustness, no bias.

It has learnt which words are usual in its text, and with them the views, the stereotypes and the gaps of those who
wrote it: what it fills into a blank about people says something of the text, not of the world. It is no source of
facts and knows nothing that came after its text; where the text hardly has a language, a subject or a time, it is
poor. Passages of the text, personal data among them, may show through in what it fills in. Do not let it decide about
people without a measurement of your own of what that does to each group."""
CITATION = """```bibtex
@software{maskmill,
  title  = {Maskmill: pretraining BERT-family encoders from raw text, on a laptop or a cluster},
  author = {{The Maskmill authors}}
}
```"""


def write_card(folder: Path, card: Card, family: Family, parity: Mapping[str, Parity]) -> None:
    """Write README.md: metadata for the hub, usage, a section for each of the card's facts, the result of the parity
    check, limits, license, citation."""
    parent = card.parent
    sentence = sentence_for(card.languages or ((card.spoken,) if card.spoken else ()))
    blank = sentence or SENTENCES["en"]
    pipeline = _PIPELINES[family.pipeline].format(
        sentence=blank.replace(BLANK, "{fill.tokenizer.mask_token}"),
        opening=blank.partition(BLANK)[0].strip(),
        comment="" if sentence else "  # better: a sentence in a language of its text",
        placeholder=PLACEHOLDER,
    )
    use = _USE.format(
        title=card.title,
        what=family.what,
        origin=parent.sentence if parent else "It was pretrained from raw text",
        pipeline=pipeline,
        export_class=family.export_class,
        placeholder=PLACEHOLDER,
    )
    weights = weights_hash(folder)
    tasks = [score for score in card.tasks if weights and score.weights == weights]
    license = f"`{card.license}`, as whoever trained it states." if card.license else NOT_STATED
    if parent and parent.license:
        license += (
            f" The model that it comes from, `{parent.name}`, is under `{parent.license}`, as its card says."
        )
    base_model = parent.name if parent and parent.is_published else ""
    parts = [
        front_matter(card.title, card.languages, card.license, card.scores, family, base_model),
        use,
        *(_section(name, value) for name, value in card.facts.items()),
        _tasks(tasks),
        _section("Proof of the export", _proof(parity)),
        _section("Limits and bias", LIMITS.format(unmeasured="" if tasks else "no downstream task, ")),
        _section("License", license),
        _section("Citation", CITATION),
    ]
    (folder / "README.md").write_text("".join(parts), "utf-8")


def _tasks(scores: Sequence[TaskScore]) -> str:
    """Return the section of the scores on tasks; empty where there are none."""
    if not scores:
        return ""
    table = markdown(HEADS, [[_cell(cell) for cell in score.cells] for score in scores])
    return (
        f"\n## Scores on tasks\n\nBy `maskmill evaluate`, medians over the seeds. {ABOUT_SCORES}\n\n{table}\n"
    )


NOT_STATED = "Not stated. Without a license nobody else may use the model: ask whoever trained it."


def _proof(parity: Mapping[str, Parity]) -> dict[str, str]:
    return {
        f"{head} logits": f"largest difference between transformers' model and the trainer's own on real text"
        f" {one.difference:.1e} in float64 (at most {one.allowed:.1e} allowed), {one.difference_float32:.1e}"
        " in float32"
        for head, one in parity.items()
    }


def _section(name: str, value: "str | Mapping[str, object]") -> str:
    if isinstance(value, str):
        return f"\n## {name}\n\n{value}\n"
    return (
        f"\n## {name}\n\n{markdown(('', ''), ([_cell(key), _cell(entry)] for key, entry in value.items()))}\n"
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        shown = f"{value:.6g}"
    else:
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return " ".join(shown.split()).replace("|", "\\|")


# The facts about data, recipe, training, hardware and scores, from a run folder and its checkpoint.

MOST_NAMED = 20
"""Sources that a card names; the others are counted."""


def card_of(run: Path, checkpoint: Checkpoint, index: Index, whole: RunConfig, config: RunConfig) -> Card:
    """Return the card of the model in `checkpoint`. `whole`: the run's settings; `config`: those of its current
    phase."""
    summary, about = read_summary(run), read_run(run) or {}
    metrics, headline, parent = _metrics_at(run, checkpoint.step), headline_of(summary), parent_of(whole)
    facts: dict[str, str | Mapping[str, object]] = {
        **({"Lineage": parent.facts} if parent else {}),
        "Data": _data(index, config),
        "Recipe": _recipe(config),
        "Training": _training(checkpoint, index, config, summary),
        "Hardware, time and energy": _hardware(read_attempts(run, summary), int(about.get("attempts", 0))),
        "Scores on held-out text": _scores(metrics, index, headline),
        "How to reproduce it": reproduce(whole, index, summary),
    }
    return Card(
        facts,
        title=title_of(config),
        languages=_languages(index),
        parent=parent,
        license=whole.export.license,
        step=checkpoint.step,
        scores=_published(metrics, headline),
        tasks=read_task_scores(run),
    )


def title_of(config: RunConfig) -> str:
    """Return a name for a model: what it learnt and its size. The name of the run's folder may be private, and says
    nothing of the model."""
    return f"{config.objective.name}-{config.encoder.layers}x{config.encoder.hidden}"


def _languages(index: Index) -> tuple[str, ...]:
    """Return the languages that were stated of the shards' text."""
    stated = index.settings.get("languages")
    return tuple(dict.fromkeys(map(str, stated))) if isinstance(stated, list) else ()


def _published(metrics: Mapping[str, Any], headline: str) -> dict[str, float]:
    """Return the held-out figures for the card's metadata: the headline metric and pairs."""
    keys = dict.fromkeys([headline, *(score.metric.key for score in leading(metrics, headline=headline))])
    held_out = [f"{HELD_OUT}{key}" for key in keys]
    return {key: metrics[key] for key in held_out if is_number(metrics.get(key))}


def _data(index: Index, config: RunConfig) -> dict[str, object]:
    reading = dict(index.statistics.get("reading") or {})
    counted = {name.replace("_", " "): count for name, count in reading.items() if count}
    names, languages = source_names(index.folder), ", ".join(_languages(index))
    more = f", and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    made = {key: value for key, value in index.settings.items() if key not in ("languages", "separators")}
    return {
        "sources, by name": ", ".join(names[:MOST_NAMED]) + more or "not recorded with the shards",
        "languages": languages or "not stated; sentences were found by the rules of English",
        **{f"read: {name}": count for name, count in counted.items()},
        "training examples": index.train.examples,
        "training tokens": index.train.tokens,
        "held-out examples": index.held_out.examples,
        "vocabulary": f"{index.vocabulary.size:,} entries",
        **{f"data.{key}": _shown(value) for key, value in made.items()},
        "data.separators": config.data.separators,
        "SHA-256 of index.json": index.identity,
        "SHA-256 of the vocabulary": index.vocabulary.sha256,
    }


def _recipe(config: RunConfig) -> dict[str, object]:
    groups = {name: asdict(config)[name] for name in ("encoder", "optim", "schedule")}
    start = {"init_from": name_only(config.init_from)} if config.init_from else {}
    return {
        "objective.name": config.objective.name,
        **{f"{name}.{key}": _shown(value) for name, group in groups.items() for key, value in group.items()},
        **start,
    }


def _training(
    checkpoint: Checkpoint, index: Index, config: RunConfig, summary: Mapping[str, Any]
) -> dict[str, object]:
    state, position = checkpoint.state, checkpoint.state.get("position", {})
    examples = int(position.get("examples", 0))
    in_phase = examples - int(position.get("phase_examples", 0))
    phases = [phase for phase in summary.get("phases") or [] if phase["name"]]
    return {
        "steps done (accepted updates)": _steps_done(checkpoint.step, config, summary),
        **({"phases": _phases(phases)} if phases else {}),
        "batches skipped": len(position.get("skipped", ())),
        "examples seen": examples,
        "tokens seen, none of them padding": int(position.get("tokens", 0)),
        "passes over the data" + (" of the last phase" if phases else ""): in_phase
        / max(index.train.examples, 1),
        "global batch, in examples": _batch(config.train),
        "sequence length": index.settings["sequence_length"],
        "peak learning rate": config.optim.lr,
        "schedule": _schedule(config.schedule),
        "clipping of the global gradient norm": config.train.clip or "none",
        "precision (masters, moments and reduction in fp32)": state.get("identity", {}).get(
            "train.precision", config.train.precision
        ),
        "parameters": summary.get("parameters", "unknown"),
    }


def _batch(train: TrainSettings) -> object:
    if not train.batch_ramp:
        return train.global_batch
    return (
        f"{train.global_batch:,}, from {train.batch_ramp_from:,} over the first {train.batch_ramp:,} batches"
    )


def _schedule(schedule: ScheduleSettings) -> str:
    end = f" to {schedule.decay_to:g} of the peak" if schedule.decay_to else ""
    decay = f", decay {schedule.decay:g} ({schedule.decay_shape}){end}" if schedule.name == "wsd" else ""
    return f"{schedule.name}, warm-up {schedule.warmup:g}{decay}, over each {schedule.span}"


def _steps_done(step: int, config: RunConfig, summary: Mapping[str, Any]) -> str:
    steps, minutes = summary.get("steps") or config.train.steps, config.train.minutes
    return f"{step:,}" + (f" of {steps:,}" if steps else "") + (f" in {minutes:g} minutes" if minutes else "")


def _phases(phases: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(
        f"{p['name']}, {_end(p)}: batch {p['global_batch']:,}, length {p['sequence_length']}, rate {p['lr']}"
        for p in phases
    )


def _end(phase: Mapping[str, Any]) -> str:
    last = phase["last"]
    return f"up to step {last:,}" if last is not None else f"of {phase.get('minutes') or 0:g} minutes"


def _hardware(attempts: list[Attempt], started: int) -> dict[str, object]:
    if not attempts:
        return {"hardware": "not recorded", "energy": "not estimated: the run kept no record of its devices"}
    places = dict.fromkeys(f"{attempt.ranks} x {attempt.device}" for attempt in attempts)
    hours = {
        kind: sum(attempt.device_hours for attempt in attempts if attempt.device_type == kind)
        for kind in ("cuda", "cpu")
    }
    missing = f"; of {started - len(attempts)} more nothing is recorded" if started > len(attempts) else ""
    return {
        "hardware, by rank": "; ".join(places),
        "times it was started": f"{len(attempts)}{missing}",
        **({"GPU-hours, all attempts": _rounded(hours["cuda"])} if hours["cuda"] else {}),
        **({"CPU-hours (threads x hours), all attempts": _rounded(hours["cpu"])} if hours["cpu"] else {}),
        "wall-clock hours, all attempts": _rounded(sum(attempt.spent for attempt in attempts) / 3600),
        "energy": _energy(attempts),
    }


def _energy(attempts: list[Attempt]) -> str:
    energy = estimate(attempts)
    if energy is None:
        unknown = dict.fromkeys(
            x.device for x in attempts if x.device_type != "cuda" or watts(x.device) is None
        )
        return f"not estimated: no highest power is known of {', '.join(unknown)} as it was used here"
    return f"{_rounded(energy.least)} to {_rounded(energy.most)} kWh. {FORMULA}"


def _scores(metrics: Mapping[str, Any], index: Index, headline: str) -> "str | dict[str, object]":
    """Return the headline scores beside their baselines, then what copying could achieve, then the findings in
    words."""
    if not metrics:
        return "The run was not evaluated at this step."
    known = with_majority(metrics, index.statistics.get("held_out"))
    rows: dict[str, object] = {score.metric.label: score.cell for score in leading(known, headline=headline)}
    rows |= {f"not comparable: {what}": value for what, value in secondary(known, headline=headline)}
    rows["in brackets"] = "what a model without any context scores"
    problems = " ".join(one.what for one in findings(known, headline=headline))
    return rows | ({"what this model has not learnt": problems} if problems else {})


def _metrics_at(run: Path, step: int) -> dict[str, Any]:
    """Return the held-out figures of exactly this step, without those that are not numbers."""
    here = [line for line in read_metrics(run) if line.get("kind") == "eval" and line.get("step") == step]
    return {
        name: value
        for line in here
        for name, value in line.items()
        if name.startswith(HELD_OUT) and (is_number(value) or isinstance(value, str))
    }


def _shown(value: Any) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value == "" else value if isinstance(value, float) else str(value)


def _rounded(value: float) -> str:
    """Round to two digits: more would claim too much precision."""
    return f"{float(f'{value:.2g}'):,g}"
