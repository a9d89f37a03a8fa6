"""Define the settings of the data pipeline, and read what they state of mask stages, sources and languages.

There are two groups: settings that decide the bytes of the shards (`affects_bytes`), and settings that do not. Nothing
here imports numpy: settings are checked before anything else is loaded.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.fields import declared, marked, setting

SCRIPT_PREDICTIONS = 20
"""What data.max_predictions=0 is in exact mode: the default of max_predictions_per_seq in google-research/bert's
create_pretraining_data.py."""

SEQUENTIAL = "sequential"
"""Value of data.order for a sequential order; the other one is `shuffled`."""
MASKINGS = ("token", "span", "ngram", "phrase", "entity")
"""Kinds of masking: values of data.masking."""
UNMASKED = "none"
"""Value of data.masking that masks nothing."""
SEPARATORS = ("both", "none", "mid", "end", "period")
"""Values of data.separators that share their shards."""
WITHOUT_SEPARATORS = "absent"
"""Value of data.separators whose shards have none."""
MOST_POSITIONS = 65_535
"""Positions, of tokens and of masks, are stored in 16 bits."""
MOST_PASSES = 10_000
"""Largest weight of a source, and largest number of passes over a document."""

_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")


def affects_bytes(default: Any, *, tokens: bool = False, masks: bool = False, **declared: Any) -> Any:
    """Declare a setting that affects the bytes of shards: it is part of the data's identity and written to
    index.json. `tokens`: it already affects the tokenized text, which preparations that differ in other settings only
    can share. `masks`: it affects what is masked, and nothing else. Its mark `recorded` is its key in index.json,
    where that is not its name."""
    return setting(default, affects_bytes=True, affects_tokens=tokens, affects_masks=masks, **declared)


@dataclass
class VocabularySettings:
    """How `maskmill vocab` trains a vocabulary."""

    size: int = setting(30522, at_least=16, at_most=2**31)
    """Entries, the five special tokens included."""
    lowercase: bool | None = None
    """Lower-case the text, as BERT's uncased models do; not given: wordpiece and unigram do, bpe does not, as
    RoBERTa."""
    strip_accents: bool | None = None
    """Strip accents and other marks: é becomes e, अपने becomes अपन; not given: as lowercase says in English, never where
    data.languages names another language."""
    min_frequency: int = setting(2, at_least=0)
    """A pair of pieces (unigram: a character) seen less often than this makes no entry."""
    sample_mb: int = setting(200, at_least=1)
    """Megabytes (10^6 bytes of UTF-8) of text to learn from, about: whole documents drawn evenly from each source,
    languages by data.smoothing, sources by data.weights. Memory: this, and one to three times as much for words; of
    text without spaces, as Chinese, twenty to fifty times as much for unigram and bpe."""
    kind: str = setting("wordpiece", one_of=("wordpiece", "bpe", "unigram"))
    """wordpiece (BERT), bpe (byte-level, RoBERTa) or unigram (SentencePiece's, ALBERT and XLNet)."""
    specials: str = setting("", one_of=("", "roberta", "xlnet"))
    """unigram: `roberta` names and numbers the special tokens as XLM-R does (<s> <pad> </s> <unk> first, <mask> last),
    `xlnet` as XLNet does (<unk> <s> </s> <cls> <sep> <pad> <mask> <eod> <eop> first); empty: as ALBERT does."""
    new_words: int = setting(1000, at_least=1, at_most=2**31)
    """With --extend: at most so many new words, those that save the most tokens."""
    min_gain: float = setting(0.0, at_least=0, at_most=1_000_000)
    """With --extend: tokens that a new word must save in a million words of the text; 0: any. A word seen less often
    than min_frequency is never new."""


@dataclass
class DataSettings:
    """Where text comes from and what shards are made of it."""

    sources: list[str] = setting([])
    """Files, folders, globs or fsspec URIs of plain text, JSON lines, tables or Wikipedia, each also compressed;
    docs/guides/data.md lists the formats and their suffixes."""
    split: str = ""
    """Of a folder with splits that Hugging Face `datasets` saved, a DatasetDict, the one to read; empty: train."""
    out: str = ""
    """Folder for the shards and index.json, or the URI of one on an object store (s3://...), with data.work."""
    vocab: str = setting("", by_phase=False)
    """A tokenizer.json, a vocab.txt, a vocab.json with its merges.txt, or a folder that holds one; `maskmill vocab`
    writes a folder here."""
    languages: list[str] = affects_bytes([], tokens=True)
    """Language (ISO 639) of each source, in their order; one stands for all; empty: en."""
    weights: list[float] = affects_bytes(
        [], above=0, at_most=MOST_PASSES, hint="to leave a source out, remove it from data.sources"
    )
    """How often the text of each source is passed over, times dupe_factor; one stands for all; empty: 1. Of a fraction
    of a pass, so many documents get one."""
    smoothing: float = affects_bytes(1.0, at_least=0, at_most=10)
    """Exponent on each language's share of the text: 1 takes text as it comes, 0.7 (multilingual BERT) raises the
    share of small languages; the amount of text stays."""
    text_field: str = affects_bytes("text", tokens=True)
    """JSON lines and tables: the field that holds the text; `meta.text` is the field text in the object or struct meta,
    unless a field has that very name."""
    id_field: str = affects_bytes("", tokens=True)
    """JSON lines and tables: the field that names a record, or the path to it; empty: its line or row."""
    bad_records: str = setting("stop", one_of=("stop", "skip"))
    """What to do about a record that cannot be read (broken JSON, a field that is missing or holds no text, a page of
    broken XML, more than 256 MiB): `stop`, or `skip` it, counted and named. A file that is damaged stops in any
    case."""
    bad_records_limit: float = setting(0.01, at_least=0, at_most=1)
    """bad_records=skip: largest share of the records that may be skipped."""
    documents: str = affects_bytes("blank_line", tokens=True, one_of=("blank_line", "file"))
    """Plain text: `blank_line` parts documents at blank lines, `file` makes one document of a file."""
    sentences: str = affects_bytes("split", tokens=True, one_of=("split", "lines"))
    """`split` finds sentences in running text; `lines` takes each line as one sentence."""
    duplicates: str = affects_bytes("keep", tokens=True, one_of=("keep", "documents", "paragraphs", "both"))
    """Which exact repetitions to drop: `keep` none, `documents`, `paragraphs`, or `both`; the first one stays."""
    seed: int = affects_bytes(12345, at_least=0, at_most=2**63)
    """Seed of every random draw in the shards."""
    sequences: str = affects_bytes("", one_of="data_pipeline.sequences.registry:SEQUENCES")
    """What a sequence holds: segment_pair (BERT), sentence_pair, sentence_order (ALBERT), two_segments (ELECTRA),
    doc_sentences or full_sentences (RoBERTa); empty: what the objective is used to."""
    separators: str = affects_bytes("both", one_of=(*SEPARATORS, WITHOUT_SEPARATORS))
    """Where a pair has [SEP]: `both` ends, or what training leaves of them in the same shards: `none`, `mid` (between
    the segments), `end`, or `period` (a plain period in their places). `absent`: prepared without, in all sequences, so
    that text takes their room."""
    separator_gap: bool = False
    """Where training leaves out the [SEP] between the segments, the second one keeps its positions."""
    segment_ids: bool = affects_bytes(True)
    """Number the segments of a pair 0 and 1; without, all tokens have 0."""
    random_next: float = affects_bytes(0.5, at_least=0, at_most=1)
    """Share of pairs whose second segment is random, or with sentence_order swapped with the first. Where only one
    sentence is left of a text, the second one is random in any case, but with sentence_order."""
    sequence_length: int = affects_bytes(128, at_least=8, at_most=MOST_POSITIONS)
    """Longest example in tokens, [CLS] and [SEP] included."""
    dupe_factor: int = affects_bytes(1, at_least=1, at_most=MOST_PASSES)
    """Passes over the text, each with other pairs and other masks."""
    short_seq_prob: float = affects_bytes(0.1, at_least=0, at_most=1)
    """Share of documents (per pass; with two_segments: of examples) cut to a random shorter target length;
    sentence_pair has natural lengths."""
    masked_lm_prob: float = affects_bytes(0.15, masks=True, at_least=0, at_most=1)
    """Share of an example's tokens to predict."""
    count_specials: bool = affects_bytes(True, masks=True)
    """Whether [CLS] and [SEP] count among the tokens that data.masked_lm_prob is a share of."""
    max_predictions: int = affects_bytes(0, masks=True, at_least=0, at_most=MOST_POSITIONS)
    """Most tokens to predict in one example; 0: as many as data.masked_lm_prob asks for. In exact mode 0 is 20, as in
    BERT's script."""
    masking: str = affects_bytes("token", masks=True, one_of=(*MASKINGS, UNMASKED))
    """What is masked as one: token, span (SpanBERT), ngram (ALBERT), phrase or entity (ERNIE); none: nothing,
    for objectives that predict without masks."""
    whole_word: bool = affects_bytes(False, masks=True)
    """With masking=token: mask all pieces of a word together, or none of them."""
    mask_replace_prob: float = affects_bytes(0.8, masks=True, recorded="mask_prob", at_least=0, at_most=1)
    """Share of the covered tokens that become [MASK]."""
    random_prob: float = affects_bytes(0.1, masks=True, at_least=0, at_most=1)
    """Share of the covered tokens that become a random one; the rest stay as they are."""
    replace_together: bool = affects_bytes(False, masks=True)
    """Draw once for a whole span or unit whether it becomes [MASK], random or stays (SpanBERT), not for each token."""
    span_p: float = affects_bytes(0.2, masks=True, at_least=0.001, at_most=1)
    """masking=span: parameter of the geometric distribution of span lengths, in words."""
    max_span: int = affects_bytes(10, masks=True, at_least=1, at_most=1000)
    """masking=span: most words of a span."""
    max_ngram: int = affects_bytes(3, masks=True, at_least=1, at_most=1000)
    """masking=ngram: most words of an n-gram; n has probability proportional to 1/n."""
    lexicon: str = affects_bytes("", masks=True)
    """masking=phrase or entity: a UTF-8 text file with a phrase or name a line; its bytes count, not its place. Phrases
    of English text are found without one as well."""
    mode: str = affects_bytes("fast", one_of=("fast", "exact"))
    """`fast` scales to any corpus; `exact` repeats google-research/bert's script draw for draw, in one process."""
    held_out: float = affects_bytes(0.0, at_least=0, at_most=0.9)
    """Share of documents set aside for evaluation; 0 in exact mode. Where languages stay apart in pairs, the only
    document of a language set aside is trained on."""
    min_donors: int = affects_bytes(10_000, at_least=2)
    """Documents that a random next segment is drawn from, at least; a smaller corpus is one pool."""
    across_languages: bool = affects_bytes(True)
    """A random next segment may be of another language; else languages are apart in the shards, too."""
    order: str = affects_bytes("shuffled", one_of=("shuffled", SEQUENTIAL))
    """`shuffled`, or `sequential`: streams walk their documents in order, as memory across segments needs."""
    bin_width: int = affects_bytes(0, at_least=0, at_most=MOST_POSITIONS)
    """Tokens: each block holds examples of one length bin so wide, for readers that pad; 0: lengths are mixed."""
    shard_tokens: int = affects_bytes(4_000_000, at_least=1)
    """Tokens of text (over all passes) that make one shard, about; a document is never cut in two."""
    block_examples: int = affects_bytes(512, at_least=1, at_most=65_536)
    """Examples in one block, the unit that is read and checked."""
    dynamic_masking: bool = False
    """Training masks every example anew at each epoch by these settings, whatever masks the shards hold."""
    mask_stages: list[str] = setting([])
    """dynamic_masking: kinds of masking one after another, each with its global batches, as
    `[token:1000, phrase:1000, entity]` (ERNIE); the last one stays. Empty: data.masking."""
    tokens: str = ""
    """A folder that keeps the tokenized text, so that another preparation of the same text, say at another
    sequence_length, starts from it; empty: it is removed at the end."""
    work: str = ""
    """Folder for unfinished work that all workers see; empty: .work in data.out. Needed where data.out is a URI.
    It takes about as many bytes as English text does, beside the shards; each preparation has its own folder in it."""
    streams: int = setting(0, at_least=0, at_most=65_536)
    """Parallel reading positions in the shards; 0: the largest divisor of the global batch up to 256, in
    sequential order one for each row of the batch."""
    both_directions: bool = False
    """In sequential order every second stream reads its documents from the end, for a memory of what comes after."""
    workers: int = setting(0, at_least=0, at_most=4096)
    """Processes that prepare data; 0: one a core. With data.scheduler=slurm: jobs."""
    executor: str = setting("local", one_of=("local", "dask"))
    """Where the workers run: `local` processes, or `dask`."""
    scheduler: str = ""
    """executor=dask: address of the scheduler, the path of its scheduler file, or `slurm`, which starts workers as
    Slurm jobs; dask-jobqueue's configuration says which (DASK_JOBQUEUE__SLURM__QUEUE, __WALLTIME, __MEMORY, ...)."""
    verify: str = setting("blocks", one_of=("blocks", "full"))
    """What training checks: `blocks` at every read, or `full`, all shard hashes at the start as well."""
    on_damage: str = setting("stop", one_of=("stop", "skip"))
    """What training does about a block of examples that is missing or changed: `stop`, or `skip` its examples, told
    and counted; the batches that lack them are smaller."""


LATER = {"count_specials": True, "random_next": 0.5}
"""Settings that affect bytes and that older shards do not name, by their keys in index.json, with what they were
then."""
_RECORDED = {name: one.metadata.get("recorded", name) for name, one in declared(DataSettings)}
"""Name of a setting -> its key in index.json."""
AFFECTING_MASKS = tuple(_RECORDED[name] for name in marked(DataSettings, "affects_masks"))
"""Settings that affect what is masked, and nothing else in the shards, by their keys in index.json."""


class MaskStage(NamedTuple):
    """From global batch `first` on, until the next stage, masking is of this kind."""

    first: int
    kind: str


def mask_stages(settings: DataSettings) -> list[MaskStage]:
    """List the stages of data.mask_stages; one of data.masking where it is empty. Raises UserError for an unknown
    kind, and for steps that are missing, too few, or given for the last one."""
    found, first = [], 0
    listed = settings.mask_stages or [settings.masking]
    kinds = MASKINGS if settings.mask_stages else (*MASKINGS, UNMASKED)
    for number, text in enumerate(listed):
        kind, colon, steps = (part.strip() for part in str(text).partition(":"))
        last = number == len(listed) - 1
        if kind not in kinds or bool(colon) == last or not (last or (steps.isdecimal() and int(steps) > 0)):
            raise UserError(
                f"cannot read {text!r}",
                where="data.mask_stages",
                expected=f"KIND:STEPS for all stages but the last, which is KIND; KIND is {' or '.join(MASKINGS)}",
                remedy="as in [token:1000, phrase:1000, entity]",
            )
        found.append(MaskStage(first, kind))
        first += 0 if last else int(steps)
    return found


def predictions_cap(settings: DataSettings) -> int:
    """Return the maximum tokens to predict in one example; 0: no cap."""
    if settings.mode == "exact":
        return settings.max_predictions or SCRIPT_PREDICTIONS
    return settings.max_predictions


def settings_affecting_bytes(settings: DataSettings) -> dict[str, Any]:
    """Return the settings that decide bytes, by their keys in index.json, in their order of declaration; of the
    lexicon, its SHA-256; of the separators, whether the shards have them. The cap on predictions is the one in force,
    so that exact mode's 0 and 20 are the same data."""
    values = {_RECORDED[name]: getattr(settings, name) for name in marked(DataSettings, "affects_bytes")}
    return values | {
        "separators": settings.separators != WITHOUT_SEPARATORS,
        "max_predictions": predictions_cap(settings),
        "lexicon": _sha256(settings.lexicon) if settings.lexicon else "",
    }


def setting_of(key: str) -> str:
    """Return the dotted name of the setting that has this key in index.json."""
    return f"data.{next((name for name, recorded in _RECORDED.items() if recorded == key), key)}"


def _sha256(lexicon: str) -> str:
    from data_pipeline.io.files import read_bytes

    try:
        return hashlib.sha256(read_bytes(lexicon)).hexdigest()
    except FileNotFoundError:
        raise UserError("no such file", where=lexicon, remedy="check data.lexicon") from None


def token_values(settings: DataSettings) -> dict[str, Any]:
    """Return the settings that decide the tokenized text, by name, in their order of declaration."""
    return {name: getattr(settings, name) for name in marked(DataSettings, "affects_tokens")}


def of_source(values: list[Any], source: int, settings: DataSettings, key: str, default: Any) -> Any:
    """Return what the list `values` of the setting `key` says of the source with this number (from 0): one value for
    each source, one for all, or, if it is empty, `default`. Raises UserError for any other length."""
    if len(values) not in (0, 1, len(settings.sources)):
        raise UserError(
            f"has {len(values)} entries for {len(settings.sources)} sources",
            where=key,
            expected="one for each source, in their order, or one for all",
        )
    return values[source if len(values) > 1 else 0] if values else default


def language_of(settings: DataSettings, source: int) -> str:
    """Return the language (ISO 639) of the source with this number (from 0). Raises UserError for a list of another
    length than the sources', or for what cannot be a language code."""
    language = str(of_source(settings.languages, source, settings, "data.languages", "en"))
    if not _LANGUAGE.fullmatch(language):
        raise UserError(
            f"{language!r} is no language code", where="data.languages", expected="ISO 639, as en"
        )
    return language


def required(value: str, key: str, expected: str) -> str:
    """Return `value`. Raises UserError, which names the setting, if it is empty."""
    if not value:
        raise UserError("is empty", where=key, expected=expected)
    return value


# Read what the settings state of every source: its language and its weight.


def stated_languages(settings: DataSettings) -> list[str]:
    """Return the language of each source. Raises UserError if data.languages and data.sources differ in length."""
    return [language_of(settings, source) for source in _sources(settings)]


def stated_weights(settings: DataSettings) -> list[float]:
    """Return the weight of each source. Raises UserError if data.weights and data.sources differ in length."""
    stated = settings.weights
    return [float(of_source(stated, s, settings, "data.weights", 1.0)) for s in _sources(settings)]


def _sources(settings: DataSettings) -> range:
    return range(max(1, len(settings.sources)))
