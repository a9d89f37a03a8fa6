"""Define ERNIE 1.0 in transformers: BERT's tensors under another prefix, without later versions' task embeddings."""

from dataclasses import replace

from pretrain.export.families.bert import BERT_FOR_PRETRAINING
from pretrain.export.families.entries import Part, Weight


def _renamed(theirs: str | Weight | Part) -> str:
    assert isinstance(theirs, str)  # BERT stores every tensor as it is here
    return theirs.replace("bert.", "ernie.", 1)


ERNIE_FOR_PRETRAINING = replace(
    BERT_FOR_PRETRAINING,
    export_class="ErnieForPreTraining",
    model_type="ernie",
    objective="ernie",
    prefix="ernie",
    names={ours: _renamed(theirs) for ours, theirs in BERT_FOR_PRETRAINING.names.items()},
    fixed={**BERT_FOR_PRETRAINING.fixed, "use_task_id": False},
    tied={_renamed(copy): _renamed(source) for copy, source in BERT_FOR_PRETRAINING.tied.items()},
    segment_table=_renamed(BERT_FOR_PRETRAINING.segment_table),
    buffers=tuple(map(_renamed, BERT_FOR_PRETRAINING.buffers)),
    tags=("ernie", "masked-lm"),
)
