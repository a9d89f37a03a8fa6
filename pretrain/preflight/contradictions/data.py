"""List rules of the data: what fits the objective, and what exact mode supports."""

from data_pipeline.sequences.registry import pair_task
from data_pipeline.settings import MASKINGS, SEPARATORS, UNMASKED, WITHOUT_SEPARATORS, mask_stages
from pretrain.config.settings import RunConfig
from pretrain.objectives.registry import registered
from pretrain.preflight.contradictions.rule import Rule


def data_rules(config: RunConfig) -> list[Rule]:
    """List what data settings cannot be together, or with the objective."""
    data, objective, known = config.data, config.objective.name, registered(config.objective.name)
    return [
        Rule(
            bool(config.vocabulary.specials) and config.vocabulary.kind != "unigram",
            f"vocabulary.specials={config.vocabulary.specials} with vocabulary.kind={config.vocabulary.kind}",
            "vocabulary.kind=unigram, or leave vocabulary.specials out",
        ),
        Rule(
            data.sequences not in known.sequences,
            f"objective.name={objective} cannot learn from data.sequences={data.sequences}",
            f"data.sequences={' or '.join(known.sequences)}",
        ),
        Rule(
            not {stage.kind for stage in mask_stages(data)} <= {*known.masking},
            f"objective.name={objective} cannot learn from data.masking={data.masking}",
            f"data.masking={' or '.join(known.masking)}",
        ),
        Rule(
            data.dynamic_masking and data.masking == UNMASKED and not data.mask_stages,
            f"data.dynamic_masking=true with data.masking={UNMASKED}, which masks nothing",
            f"data.dynamic_masking=false, or data.masking={' or '.join(MASKINGS)}",
        ),
        Rule(
            bool(data.mask_stages) and not data.dynamic_masking,
            "data.mask_stages without data.dynamic_masking",
            "data.dynamic_masking=true",
        ),
        Rule(
            data.order == "sequential" and data.bin_width > 0,
            f"data.bin_width={data.bin_width} sorts by length, data.order=sequential keeps the documents' order",
            "data.bin_width=0, or data.order=shuffled",
        ),
        Rule(
            data.separators in SEPARATORS[1:] and pair_task(data.sequences) is None,
            f"data.separators={data.separators} is of pairs, and data.sequences={data.sequences} has none",
            f"data.separators={SEPARATORS[0]} or {WITHOUT_SEPARATORS}, or data.sequences=segment_pair",
        ),
        Rule(
            data.separator_gap and data.separators not in ("none", "end"),
            f"data.separator_gap=true, and data.separators={data.separators} leaves no [SEP] between segments out",
            "data.separator_gap=false, or data.separators=none",
        ),
        Rule(
            data.mask_prob + data.random_prob > 1,
            f"data.mask_prob={data.mask_prob} and data.random_prob={data.random_prob} sum to more than 1",
            "lower one of them",
        ),
    ]


def exact_mode_rules(config: RunConfig) -> list[Rule]:
    """List what google-research/bert's create_pretraining_data.py does not support."""
    data = config.data
    rules = [
        (
            data.held_out > 0,
            f"sets nothing aside, and data.held_out={data.held_out}",
            "data.held_out=0",
        ),
        (
            data.sentences != "lines",
            f"reads one sentence per line, and data.sentences={data.sentences}",
            "data.sentences=lines",
        ),
        (
            data.sequences != "segment_pair",
            f"makes segment pairs alone, and data.sequences={data.sequences}",
            "data.sequences=segment_pair",
        ),
        (
            not (data.separators in SEPARATORS and data.segment_ids),
            "makes [CLS] A [SEP] B [SEP] with segments 0 and 1 alone",
            "data.separators=both data.segment_ids=true",
        ),
        (
            data.random_next != 0.5,
            f"draws half of the second segments at random, and data.random_next={data.random_next}",
            "data.random_next=0.5",
        ),
        (
            not data.count_specials,
            "counts [CLS] and [SEP] among the tokens, and data.count_specials=false",
            "data.count_specials=true",
        ),
        (
            data.smoothing != 1 or any(weight != 1 for weight in data.weights),
            "reads all text equally often, and data.smoothing or data.weights asks for something else",
            "data.smoothing=1 and no data.weights",
        ),
        (
            not data.across_languages and len(set(data.languages)) > 1,
            "draws random next segments from all documents, and data.across_languages=false",
            "data.across_languages=true",
        ),
        (
            data.masking != "token",
            f"masks single tokens alone, and data.masking={data.masking}",
            "data.masking=token",
        ),
        (
            data.order != "shuffled" or data.bin_width > 0,
            f"shuffles its examples, and data.order={data.order}, data.bin_width={data.bin_width}",
            "data.order=shuffled data.bin_width=0",
        ),
    ]
    return [
        Rule(data.mode == "exact" and broken, f"data.mode=exact {what}", f"{remedy}, or data.mode=fast")
        for broken, what, remedy in rules
    ]
