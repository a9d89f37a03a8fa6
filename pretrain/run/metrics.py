"""Name, format and word the metrics of a run, each with its baseline: every view takes them from here.

A key of metrics.jsonl says what is predicted, how that is measured, and of pairs at which label: mask_loss,
nsp_accuracy, nsp_accuracy_is_next; with `held_out_` in front it is of held-out text. PREDICTIONS and MEASURES word
these keys, METRICS the others, such as the learning rate, and CHARTS says what is drawn over the steps, by report.html
and by W&B. A key that no table has is shown by its name.

To add a metric: log it where it is computed, and add its row here.

Neither numpy nor torch is needed: light commands import this module.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from data_pipeline.sequences.registry import NEXT_SENTENCE, SENTENCE_ORDER
from pretrain.run.files import number

HELD_OUT = "held_out_"
HEADLINE = "mask_loss"
"""Main metric of a run whose files name none."""

# Format a value.


def nats(value: float) -> str:
    """Format a loss, or a score between 0 and 1."""
    return f"{value:.3f}"


def percent(value: float) -> str:
    """Format a fraction."""
    return f"{value:.1%}"


def perplexity(loss: float) -> str:
    """Format exp(loss), the number of equally likely words the model chooses among."""
    among = math.exp(min(loss, 50.0))
    return f"{among:.1f}" if among < 100 else f"{among:,.0f}" if among < 1e6 else f"{among:.2g}"


def count(value: float) -> str:
    """Format a count, or a rate of counts."""
    return f"{value:,.0f}"


# What is predicted, and how it is measured.


class Prediction(NamedTuple):
    """What is predicted: the first part of the keys of its metrics."""

    name: str
    at: str = ""
    """Where, or of what, as in `loss at [MASK]`; empty: what is predicted comes first, as in `next-sentence loss`."""
    title: str = ""
    """That what, for people; empty: the name."""
    short: str = ""
    """The same in a line with little space."""
    tag: str = ""
    """In front of its metrics in a line, and of `positions`."""
    words: bool = False
    """Entries of the vocabulary are predicted: perplexity and word frequencies mean something."""
    labels: tuple[str, ...] = ()
    """Of a pair task."""
    secondary: str = ""
    """Its name where another prediction leads; empty: the title."""
    caveat: str = ""
    """Why its metrics alone do not show that anything was learnt."""
    is_part: bool = False
    """Its loss is a part of another prediction's, not a term of its own."""

    @property
    def subject(self) -> str:
        """What is predicted, in words."""
        return self.title or self.name.replace("_", " ")

    @property
    def abbreviation(self) -> str:
        """Short form, for narrow lines and sums of losses."""
        return self.short or self.subject

    def label(self, measure: str) -> str:
        """Name one of its measures, as `loss at [MASK]` or `next-sentence loss`."""
        return f"{measure} {self.at}" if self.at else f"{self.subject} {measure}"

    def short_label(self, measure: str) -> str:
        """Name it in a line that has named the place already, as `loss` or `NSP loss`."""
        return measure if self.at else f"{self.abbreviation} {measure}"


_PREDICTIONS = (
    Prediction("mask", at="at [MASK]", tag="[MASK]", words=True, is_part=True),
    Prediction("causal", at="at the next token", short="LM", tag="next-token", words=True),
    Prediction("plm", at="at the targets of the permutation", short="PLM", tag="target", words=True),
    Prediction("rtd", title="replaced-token", short="RTD"),
    Prediction("kept", at="where a word is kept", secondary="positions that keep their word", is_part=True),
    Prediction("random", at="where a random word is shown", secondary="positions that show a random word",
               is_part=True),
    Prediction("mlm", at="over all predicted tokens", short="MLM",
               secondary="all predicted positions, visible words included",
               caveat="Some of these tokens stay visible; copying them does well and does not show that context was "
               "learnt."),
    Prediction("nsp", title="next-sentence", short="NSP", labels=NEXT_SENTENCE.labels),
    Prediction("sop", title="sentence-order", short="SOP", labels=SENTENCE_ORDER.labels),
    Prediction("soft", at="against the teacher's predictions", short="soft targets",
               caveat="How alike two models are does not say how good either is."),
    Prediction("cos", at="of the direction of hidden states", short="cosine"),
)  # fmt: skip
PREDICTIONS = {one.name: one for one in _PREDICTIONS}
"""Predictions with words of their own, in the order to show them."""


class Measure(NamedTuple):
    """How a prediction is measured: the second part of a key."""

    name: str
    text: Callable[[float], str]
    """Format a value."""
    about: str = ""
    """What a value means, in a sentence."""
    label: str = ""
    """Empty: the name."""
    unit: str = ""
    lower_is_better: bool | None = False
    """None: no value is better than another."""
    leads: bool = False
    """It is shown of the prediction that leads, whatever its headline metric is."""
    of_words: bool = False
    """It means something where words are predicted alone."""
    log: bool = False
    """It is drawn on a logarithmic axis."""
    held_out: bool = False
    """It is measured on held-out text alone."""


_MEASURES = (
    Measure("loss", nats, "Lower is better.", unit="nats", lower_is_better=True, leads=True),
    Measure("accuracy", percent, "The fraction that is predicted right.", leads=True),
    Measure("perplexity", perplexity, "Among so many equally likely words it chooses.", lower_is_better=True,
            leads=True, of_words=True, log=True),
    Measure("auc", nats, label="AUC"),
    Measure("top_share", percent, "Near 100% the model gives the same answer everywhere.",
            "share of the commonest answer", lower_is_better=None, of_words=True, held_out=True),
)  # fmt: skip
MEASURES = {one.name: one for one in _MEASURES}
"""In the order to show them."""
_OF_BASELINES = ("unigram_loss", "majority", "top_token")
"""Keys behind what is predicted that other metrics are compared with, or words."""
_KEY = re.compile(
    r"([a-z][a-z0-9]*(?:_[a-z0-9]+)*?)"
    rf"_({'|'.join(sorted((*MEASURES, *_OF_BASELINES), key=len, reverse=True))})(?:_([a-z0-9_]+))?"
)
LONGEST_KEY = 80

# What a value is compared with: what a model without any context scores.


class Baseline(NamedTuple):
    """What a model without any context scores in a metric."""

    key: str
    """In metrics.jsonl, behind `held_out_`; empty: the same for any text."""
    label: str
    """In a line, in front of its value."""
    title: str
    """In a chart."""
    sentence: str
    """With {} for its value."""
    value: Callable[[float], float] = float
    """From that of the key."""

    def of(self, metrics: Mapping[str, Any]) -> float | None:
        """Return its value among the metrics of a run; None if it is unknown."""
        known = number(metrics.get(f"{HELD_OUT}{self.key}")) if self.key else 0.5
        return None if known is None else self.value(known)


GUESS = Baseline("", "a guess", "a guess", "A guess has {}.")


def _unigram_loss(name: str) -> Baseline:
    title = "word frequencies alone"
    return Baseline(f"{name}_unigram_loss", "unigram", title, f"{title_of(title)} give {{}}.")


def _majority(name: str, answer: str) -> Baseline:
    return Baseline(f"{name}_majority", answer, answer, f"Always the {answer} would get {{}}.")


def _label_entropy(majority: float) -> float:
    """Compute the entropy of two labels in nats, from the frequency of the commoner one."""
    return -sum(part * math.log(part) for part in (majority, 1 - majority) if part > 0)


# The metrics by their keys.


class Metric(NamedTuple):
    """A metric that a run logs."""

    key: str
    """In metrics.jsonl, without `held_out_`."""
    label: str
    """Its name for people."""
    text: Callable[[float], str] = nats
    """Format a value."""
    words: str = "{}"
    """How a value reads in a line of the terminal."""
    row: str = ""
    """Row of the live panel; empty: it is in none."""
    unit: str = ""
    about: str = ""
    lower_is_better: bool | None = None
    """None: no value is better than another."""
    prediction: Prediction | None = None
    measure: str = ""
    pair_label: str = ""
    """The pair label that it is of; empty: all."""

    @property
    def baseline(self) -> Baseline | None:
        """What its value is compared with on held-out text; None if with nothing."""
        prediction = self.prediction
        if self.measure == "auc":
            return GUESS
        if prediction is None or self.pair_label:
            return None
        if self.measure == "accuracy":
            answer = (
                "most frequent token"
                if prediction.words
                else "commoner label"
                if prediction.labels
                else "commonest answer"
            )
            return _majority(prediction.name, answer)
        if self.measure in ("loss", "perplexity") and prediction.words:
            return _unigram_loss(prediction.name)
        if self.measure == "loss" and len(prediction.labels) == 2:
            title = "label frequencies alone"
            sentence = f"{title_of(title)} give {{}}."
            return Baseline(
                f"{prediction.name}_majority", "label frequencies", title, sentence, _label_entropy
            )
        return None

    def worded(self, value: Any) -> str:
        """Format a value for a line; empty if it is no number."""
        return self.words.format(self.text(value)) if number(value) is not None else ""


SPEED_ROW, UPDATE_ROW, DATA_ROW = "speed", "update", "data"
_METRICS = (
    Metric("loss", "total loss", nats, unit="nats", lower_is_better=True),
    Metric("lr", "learning rate", "{:.2e}".format, "lr {}", UPDATE_ROW),
    Metric("grad_norm", "gradient norm", "{:.2f}".format, "gradient {}", UPDATE_ROW),
    Metric("trust_ratio", "trust ratio", nats, "trust ratio {}", UPDATE_ROW),
    Metric("tokens_per_s", "tokens/s", count, "{} tokens/s", SPEED_ROW, "tokens/s"),
    Metric("mfu", "MFU", percent, "{} of the peak (MFU)", SPEED_ROW),
    Metric("step_ms", "median step", count, "{} ms a step", SPEED_ROW, "ms"),
    Metric("examples_per_s", "examples/s", count, "{} examples/s", unit="examples/s"),
    Metric("data_wait_share", "data wait", percent, "waited for {} of the time", DATA_ROW),
    Metric("fill", "budget used", "{:.0%}".format, "{} of the token budget used", DATA_ROW),
    Metric("memory_gb", "memory", "{:.2f}".format, "{} GB on the fullest rank", DATA_ROW, "GB"),
    Metric("tokens_to_context", "tokens until the loss is half a nat below the unigram's", count,
           lower_is_better=True),
    Metric("context_gain", "nats below the unigram at the end", nats, unit="nats", lower_is_better=False),
)  # fmt: skip
METRICS = {one.key: one for one in _METRICS}
"""Metrics that measure no prediction, in the order to show them; the last two are a study's."""


def metric(key: str) -> Metric:
    """Return the metric with this key, with or without `held_out_`: a row of METRICS, one that measures a prediction,
    or one that is shown by its name."""
    name = key.removeprefix(HELD_OUT)
    if name in METRICS:
        return METRICS[name]
    match = _KEY.fullmatch(name)
    if not match or len(key) > LONGEST_KEY:
        return Metric(name, name.replace("_", " "))
    name_of_prediction, measure, pair_label = match.groups()
    prediction = PREDICTIONS.get(name_of_prediction, Prediction(name_of_prediction))
    known = MEASURES.get(measure, Measure(measure, nats if "loss" in measure else percent))
    label = prediction.label(known.label or measure.replace("_", " "))
    better = known.lower_is_better if measure in MEASURES else None
    return Metric(name, label, known.text, "{}", "", known.unit, known.about, better, prediction, measure,
                  pair_label or "")  # fmt: skip


def title_of(words: str) -> str:
    """Capitalise the first letter of `words`."""
    return words[:1].upper() + words[1:]


def label_title(label: str) -> str:
    """Write a pair label as papers do: IsNext."""
    return "".join(map(title_of, label.split("_")))


def is_shown(key: str, headline: str) -> bool:
    """Return whether a value of this key in metrics.jsonl or summary.json measures what a run has learnt."""
    return key.removeprefix(HELD_OUT) in ("loss", "pairs", headline) or metric(key).prediction is not None


def headline_of(summary: Mapping[str, Any]) -> str:
    """Return the main metric of a run, from its summary.json."""
    return str(summary.get("headline") or HEADLINE)


def leading_prediction(headline: str) -> Prediction:
    """Return what the headline metric predicts; for a metric with a name of its own, a prediction of that name."""
    return metric(headline).prediction or Prediction(headline)


def leads_alone(headline: str) -> bool:
    """Return whether the main metric is none of those shown for every prediction that leads."""
    measure = MEASURES.get(metric(headline).measure)
    return measure is None or not measure.leads


def predictions_in(keys: Iterable[str]) -> list[Prediction]:
    """List the predictions of the metrics with these keys: known ones first, then the others in order."""
    known = {m.prediction.name: m.prediction for m in map(metric, keys)
             if m.prediction and m.measure in ("loss", "accuracy")}  # fmt: skip
    return [p for p in PREDICTIONS.values() if p.name in known] + [
        p for name, p in known.items() if name not in PREDICTIONS
    ]


# Score a run: the headline's prediction first, then pairs. All others are shown separately: copying what is visible
# scores well on kept words and shows no knowledge.


class Score(NamedTuple):
    """The value of a metric, beside its baseline."""

    metric: Metric
    value: float
    """In nats for a perplexity, which is written as exp of it."""
    reference: float | None = None
    """What the baseline scores; None if that is unknown, or there is none."""

    @property
    def text(self) -> str:
        """The value."""
        return self.metric.text(self.value)

    @property
    def reference_text(self) -> str:
        """What the baseline scores; empty if that is unknown."""
        return "" if self.reference is None else self.metric.text(self.reference)

    @property
    def cell(self) -> str:
        """The value and its baseline: `3.000 (unigram 5.880)`."""
        baseline = self.metric.baseline
        if baseline is None or self.reference is None:
            return self.text
        return f"{self.text} ({baseline.label} {self.reference_text})"

    @property
    def label(self) -> str:
        """The short name, for a line that has named the place already: `loss`, `NSP accuracy`."""
        known = self.metric
        measure = MEASURES.get(known.measure)
        if known.prediction is None or measure is None:
            return known.label
        return known.prediction.short_label(measure.label or measure.name)

    @property
    def of_pairs(self) -> bool:
        """Whether it is of a pair task."""
        return self.metric.prediction is not None and bool(self.metric.prediction.labels)

    @property
    def sentence(self) -> str:
        """The comparison with its baseline, for a page; empty if that is unknown."""
        baseline = self.metric.baseline
        if baseline is None or self.reference is None:
            return ""
        if self.metric.measure != "loss":
            return baseline.sentence.format(self.reference_text)
        side = "below" if self.value < self.reference else "above"
        distance = f"{abs(self.reference - self.value):.2f}"
        return f"{distance} nats {side} what {baseline.title} give ({self.reference_text})."

    def __str__(self) -> str:
        return f"{self.label} {self.cell}"


def leading(metrics: Mapping[str, Any], prefix: str = HELD_OUT, headline: str = HEADLINE) -> list[Score]:
    """Return the known scores: the headline, the measures that are shown of its prediction, then the pairs. `prefix`:
    empty for training metrics, which have no baselines. `headline`: the objective's."""
    prediction = leading_prediction(headline)
    keys = [
        f"{prediction.name}_{one.name}"
        for one in MEASURES.values()
        if one.leads and (prediction.words or not one.of_words)
    ]
    if leads_alone(headline):
        keys.insert(0, headline)
    keys += [f"{pairs.name}_accuracy" for pairs in pair_tasks(metrics, prefix) if pairs != prediction]
    scores = (score_of(key, metrics, prefix) for key in keys)
    return [score for score in scores if score is not None]


def pair_tasks(metrics: Mapping[str, Any], prefix: str = HELD_OUT) -> list[Prediction]:
    """List the pair tasks that have an accuracy in the metrics."""
    pairs = [one for one in predictions_in(metrics) if one.labels]
    return [one for one in pairs if number(metrics.get(f"{prefix}{one.name}_accuracy")) is not None]


def score_of(key: str, metrics: Mapping[str, Any], prefix: str = HELD_OUT) -> Score | None:
    """Score one metric; None if its value is unknown."""
    known = metric(key)
    source = (
        f"{known.prediction.name}_loss" if known.prediction and known.measure == "perplexity" else known.key
    )
    value = number(metrics.get(f"{prefix}{source}"))
    if value is None:
        return None
    return Score(known, value, known.baseline.of(metrics) if known.baseline and prefix else None)


def known_scores(metrics: Mapping[str, Any], headline: str = HEADLINE) -> tuple[str, list[Score]]:
    """Return the scores of the headline's prediction on held-out text; else the headline in training, or the first term
    of the loss; with their prefix. Empty without any."""
    terms = [f"{one.name}_loss" for one in predictions_in(metrics) if not one.is_part and not one.labels]
    for key in (headline, *terms, "loss"):
        for prefix in (HELD_OUT, ""):
            if (own := score_of(key, metrics, prefix)) is None:
                continue
            if key != headline or not prefix:
                return prefix, [own]
            scores = leading(metrics, prefix, headline)
            return prefix, [one for one in scores if one.metric.prediction == own.metric.prediction]
    return "", []


def secondary(metrics: Mapping[str, Any], headline: str = HEADLINE) -> list[tuple[str, str]]:
    """Return (name, scores) on held-out text of the positions that show a word, of all predicted ones, of other
    predictions, and of the total loss."""
    rows = []
    for prediction in predictions_in(metrics):
        if prediction == leading_prediction(headline) or prediction.labels:
            continue
        scores = (score_of(f"{prediction.name}_{what}", metrics) for what in ("loss", "accuracy"))
        if words := ", ".join(f"{one.metric.measure} {one.text}" for one in scores if one):
            rows.append((prediction.secondary or prediction.subject, words))
    if total := score_of("loss", metrics):
        rows.append((f"loss that is minimised, {sum_of(metrics)}", total.text))
    return rows


def sum_of(metrics: Iterable[str]) -> str:
    """Name the sum that `loss` is, by its terms."""
    known = sorted({name.removeprefix(HELD_OUT) for name in metrics})
    terms = [one for one in predictions_in(known) if f"{one.name}_loss" in known and not one.is_part]
    return " + ".join(one.abbreviation for one in terms) or "total"


def total_loss(metrics: Mapping[str, Any], key: str = "loss") -> str:
    """Format the total loss, named by its terms: `MLM + NSP loss 5.432`."""
    value = number(metrics.get(key))
    return f"{sum_of(metrics)} loss {'not a number' if value is None else nats(value)}"


# What is drawn over the steps, by report.html and by the dashboard of W&B.


LEARNING, SPEED, OPTIMIZER, HEALTH = "Learning", "Speed", "Optimizer", "Health"
"""Sections; that on health is W&B's alone, where the report has tables."""


class Curve(NamedTuple):
    """A metric in a chart."""

    key: str
    label: str = ""
    """Empty: the metric's."""
    colour: int = 1
    """Of the palette of the report; 4 and 5 are dashed as well, so that colour is not the only difference."""

    @property
    def name(self) -> str:
        """What it is called in the chart."""
        return self.label or metric(self.key).label


class Chart(NamedTuple):
    """Metrics over the steps, drawn if a run logged any of them."""

    section: str
    id: str
    title: str
    about: str
    curves: tuple[Curve, ...] = ()
    baseline: Baseline | None = None
    unit: str = ""
    percent: bool = False
    """Values are fractions, shown in percent."""
    full: bool = False
    """The axis covers 0 to 1."""
    zero: bool = False
    """The axis starts at zero."""
    log: bool = False
    """The axis is logarithmic."""
    noisy: bool = True
    """Curves vary from line to line: a smooth one is drawn in front."""
    wide: bool = False
    pattern: str = ""
    """Regular expression of further keys, whose number depends on the run: for W&B."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its metrics and of their baseline."""
        baseline = [f"{HELD_OUT}{self.baseline.key}"] if self.baseline and self.baseline.key else []
        return (*(curve.key for curve in self.curves), *baseline)


def _both(key: str) -> tuple[Curve, ...]:
    return (Curve(key, "train"), Curve(f"{HELD_OUT}{key}", "held-out", 2))


def _over_steps(key: str, about: str = "", **changes: Any) -> Chart:
    """Return the chart of one metric in training and on held-out text, and its baseline."""
    known, measure = metric(key), MEASURES.get(metric(key).measure)
    is_fraction, is_log = known.text is percent, measure is not None and measure.log
    curves = _both(key)[1:] if measure and measure.held_out else _both(key)
    about, baseline = about or known.about, None if is_log else known.baseline
    chart = Chart(LEARNING, key.replace("_", "-"), title_of(known.label), about, curves, baseline, known.unit)
    return chart._replace(percent=is_fraction, zero=is_fraction, log=is_log)._replace(**changes)


def learning_charts(logged: Iterable[str], headlines: Sequence[str]) -> list[Chart]:
    """Return the charts of what objectives with these metrics learn: of the headlines, of pairs, of what copying could
    achieve, of the other predictions, and of the total loss."""
    keys = list(dict.fromkeys(key.removeprefix(HELD_OUT) for key in logged))
    leads = {prediction.name: prediction for prediction in map(leading_prediction, headlines)}
    others = [prediction for prediction in predictions_in(keys) if prediction.name not in leads]
    alone = [key for key in dict.fromkeys(headlines) if leads_alone(key)]
    charts = [_over_steps(key, "What the objective leads with.", id="headline") for key in alone]
    for prediction in leads.values():
        charts += _of_prediction(prediction, set(keys).difference(alone), leads=True)
    for prediction in others:
        charts += _of_pairs(prediction) if prediction.labels else []
    if parts := [prediction for prediction in others if prediction.is_part]:
        charts += _where_a_word_is_shown(parts)
    for prediction in others:
        charts += (
            [] if prediction.is_part or prediction.labels else _of_prediction(prediction, keys, leads=False)
        )
    if " + " in (terms := sum_of(keys)):
        charts.append(_over_steps("loss", f"The sum that is minimised: {terms}."))
    return charts


def _of_prediction(prediction: Prediction, keys: Collection[str], *, leads: bool) -> list[Chart]:
    """Return a chart of each of its measures; those of words are derived from others, and not among the keys."""
    charts = []
    for measure in MEASURES.values():
        key = f"{prediction.name}_{measure.name}"
        if not (leads and prediction.words) if measure.of_words else key not in keys:
            continue
        chart = _over_steps(key)
        if prediction.words and measure.name == "loss":
            where = prediction.at if prediction.at.startswith("at ") else f"of {prediction.subject}"
            about = f"Nats a token predicted {where}; lower is better."
            chart = chart._replace(
                about=f"{about} Above the dashed line no context has been learnt.", wide=leads
            )
        elif not leads:
            chart = chart._replace(about=f"{chart.about} {prediction.caveat}".strip(), baseline=None)
        charts.append(chart)
    return charts


def _of_pairs(prediction: Prediction) -> list[Chart]:
    """Return the charts of a pair task, with a curve for each label."""
    last, charts = label_title(prediction.labels[-1]), []
    for what, about in (
        (
            "loss",
            f"Nats a pair; lower is better. Knowing only how many pairs are {last} would give the dashed line.",
        ),
        ("accuracy", "Share of pairs judged right."),
    ):
        key = f"{prediction.name}_{what}"
        train, held_out = (
            tuple(
                Curve(f"{prefix}{key}_{label}", label_title(label), 3 + i)
                for i, label in enumerate(prediction.labels)
            )
            for prefix in ("", HELD_OUT)
        )
        both, title = _both(key), title_of(metric(key).label)
        charts += [
            _over_steps(key, about, title=f"{title}, by pair label", curves=(both[0], *train, both[1]), zero=False),
            _over_steps(key, "On held-out text.", id=f"held-out-{prediction.name}-{what}", curves=held_out, zero=False,
                        title=f"Held-out {metric(key).label}, by pair label"),
        ]  # fmt: skip
    return charts


def _where_a_word_is_shown(parts: list[Prediction]) -> list[Chart]:
    """Return the charts of positions that show a word, where copying is right or wrong."""
    charts = []
    for what, about in (
        ("accuracy", "Copying gets kept words right without any context; where a random word is shown, it gets none "
         "right."),
        ("loss", "Nats a token, of words that are kept and of positions that show a random one."),
    ):  # fmt: skip
        curves = tuple(
            Curve(f"{prefix}{prediction.name}_{what}", f"{prediction.name}, {split}", 3 + i)
            for i, prediction in enumerate(parts)
            for split, prefix in (("train", ""), ("held-out", HELD_OUT))
        )
        title = f"{title_of(what)} where a word is shown"
        charts.append(
            _over_steps(
                f"{parts[0].name}_{what}",
                about,
                id=f"kinds-{what}",
                title=title,
                curves=curves,
                baseline=None,
            )
        )
    return charts


THROUGHPUT = "tokens-per-s"
CHARTS = (
    Chart(OPTIMIZER, "lr", "Learning rate", "As the schedule set it.", (Curve("lr"),), zero=True, noisy=False),
    Chart(OPTIMIZER, "grad-norm", "Gradient norm", "Before clipping, over all parameters.", (Curve("grad_norm"),),
          zero=True),
    Chart(OPTIMIZER, "trust-ratio", "Mean trust ratio",
          "LAMB: norm of a tensor over norm of its update, averaged over tensors.", (Curve("trust_ratio"),), zero=True),
    Chart(SPEED, THROUGHPUT, "Throughput", "Tokens a second over all ranks, padding not counted.",
          (Curve("tokens_per_s"),), unit="tokens/s", zero=True, wide=True),
    Chart(SPEED, "examples-per-s", "Examples per second", "", (Curve("examples_per_s"),), unit="examples/s",
          zero=True),
    Chart(SPEED, "step-time", "Time of a step",
          "Milliseconds, on the rank where it is longest: the median step, its forward passes, and the slowest.",
          (Curve("step_ms", "median"), Curve("forward_ms", "forward", 3), Curve("slowest_step_ms", "slowest", 4)),
          unit="ms", zero=True),
    Chart(SPEED, "shares", "Where the time and the token budget go",
          "Budget used: tokens of what the micro-batches could have held; what is left of it is not padding, which "
          "has a line of its own. Data wait: time spent waiting for batches. MFU: of the peak.",
          (Curve("fill", colour=3), Curve("data_wait_share", colour=2), Curve("mfu"),
           Curve("padding_share", "padding", 4)), percent=True, full=True),
    Chart(SPEED, "slow-rank", "The slowest rank",
          "How many times as long its forward passes take, token for token, as the median of the others.",
          (Curve("slowest_rank_ratio", "slowest rank", 2),)),
    Chart(SPEED, "memory", "Memory", "Highest use of one rank, in GB.", (Curve("memory_gb"),), unit="GB", zero=True,
          noisy=False),
    Chart(HEALTH, "skipped", "Skipped batches and damaged examples", "",
          (Curve("skipped_batches"), Curve("damaged_examples"))),
    Chart(HEALTH, "which-rank", "Which rank is slowest", "", (Curve("slowest_rank"),), unit="rank"),
    Chart(HEALTH, "epoch", "Epoch", "", (Curve("epoch"),)),
    Chart(HEALTH, "batches", "Batches consumed", "", (Curve("batch"),)),
)  # fmt: skip
"""The charts of every run, in the order of the page."""
