"""Register the sequence builders by the value of `data.sequences`, one line each.

Nothing here imports numba, so looking up sequences and their labels is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from data_pipeline.errors import UserError

if TYPE_CHECKING:
    from data_pipeline.sequences.base import SequenceBuilder
    from data_pipeline.settings import DataSettings
    from data_pipeline.vocabulary.base import Vocabulary


class PairTask(NamedTuple):
    """The classification task of a pair of segments. Label n of an example is labels[n]; -1: it has none."""

    name: str
    """Name of its term in the loss, and the first word of its metrics."""
    labels: tuple[str, ...]
    meanings: tuple[str, ...]
    """Description of each label."""
    random_next: bool
    """Whether a second segment may come from another document, so that at least two are needed."""


NEXT_SENTENCE = PairTask(
    "nsp", ("is_next", "not_next"), ("B follows A", "B is from another document"), random_next=True
)
SENTENCE_ORDER = PairTask(
    "sop", ("in_order", "swapped"), ("A and B in their order", "A and B swapped"), random_next=False
)


class Registered(NamedTuple):
    """Facts about a sequence builder that are available without importing its module, and numba with it."""

    place: str
    """module:class"""
    pair_task: PairTask | None = None
    """None: sequences without a label."""
    single: bool = False
    """Whether a sequence is one segment."""


SEQUENCES = {
    "segment_pair": Registered("data_pipeline.sequences.pairs:NextSentencePairs", NEXT_SENTENCE),
    "sentence_pair": Registered("data_pipeline.sequences.pairs:SentencePairs", NEXT_SENTENCE),
    "sentence_order": Registered("data_pipeline.sequences.pairs:OrderedPairs", SENTENCE_ORDER),
    "two_segments": Registered("data_pipeline.sequences.pairs:TwoSegments"),
    "doc_sentences": Registered("data_pipeline.sequences.single:SingleStreams", single=True),
    "full_sentences": Registered("data_pipeline.sequences.single:FullSentences", single=True),
}
"""Value of `data.sequences` -> sequence builder."""

PAIRS = tuple(name for name, builder in SEQUENCES.items() if builder.pair_task)
SINGLES = tuple(name for name, builder in SEQUENCES.items() if builder.single)
UNLABELLED = tuple(
    name for name, builder in SEQUENCES.items() if not builder.pair_task and not builder.single
)


def pair_task(sequences: object) -> PairTask | None:
    """Return the pair task of these sequences; None for those without a label, and for an unknown name, which the
    index.json of another writer may have."""
    builder = SEQUENCES.get(sequences) if isinstance(sequences, str) else None
    return builder.pair_task if builder else None


def label_names(sequences: object) -> tuple[str, ...]:
    """Return the names of the labels 0, 1, ... of these sequences; "0" and "1" if they have no pair task."""
    task = pair_task(sequences)
    return task.labels if task else ("0", "1")


def load(name: str) -> "type[SequenceBuilder]":
    """Import the builder class of the sequences of this name. Raises UserError for an unknown name."""
    if name not in SEQUENCES:
        raise UserError(f"unknown {name!r}", where="data.sequences", expected=" or ".join(SEQUENCES))
    module, _, attribute = SEQUENCES[name].place.partition(":")
    return getattr(import_module(module), attribute)


def builder_of(settings: "DataSettings", vocabulary: "Vocabulary") -> "SequenceBuilder":
    """Make the sequence builder for these settings. Raises UserError for an unknown name or a setting out of range."""
    return load(settings.sequences).from_settings(settings, vocabulary)
