"""List the tasks of GLUE (Wang et al. 2019) and SNLI (Bowman et al. 2015): their files, labels and metrics."""

from pretrain.evaluate.downstream.tasks.fine_tuned.classification import Classification
from pretrain.evaluate.downstream.tasks.fine_tuned.labelled_texts import Columns

PAIR = Columns(("sentence1",), ("sentence2",))
BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")
GOLD = Columns(("sentence1",), ("sentence2",), ("gold_label",))

GLUE = [
    Classification(
        "cola",
        "CoLA",
        ("matthews", "accuracy"),
        Columns(("sentence",), without_names=("source", "label", "original", "sentence")),
        BINARY,
    ),
    Classification("sst2", "SST-2", ("accuracy",), Columns(("sentence",)), BINARY),
    Classification(
        "mrpc",
        "MRPC",
        ("f1", "accuracy"),
        Columns(("#1 String",), ("#2 String",), ("Quality",)),
        BINARY,
    ),
    Classification(
        "qqp",
        "QQP",
        ("f1", "accuracy"),
        Columns(("question1",), ("question2",), ("is_duplicate",), short_rows=True),
        BINARY,
    ),
    Classification(
        "stsb", "STS-B", ("pearson", "spearman"), Columns(("sentence1",), ("sentence2",), ("score",))
    ),
    Classification("mnli", "MNLI", ("accuracy",), GOLD, NLI, ("dev_matched", "dev_mismatched")),
    Classification("qnli", "QNLI", ("accuracy",), Columns(("question",), ("sentence",)), ENTAILMENT),
    Classification("rte", "RTE", ("accuracy",), PAIR, ENTAILMENT),
    Classification("wnli", "WNLI", ("accuracy",), PAIR, BINARY),
    Classification(
        "ax",
        "AX",
        ("matthews", "accuracy"),
        Columns(("Premise",), ("Hypothesis",), ("Label",)),
        NLI,
        ("diagnostic-full",),
        where_absent="put it there from GLUE's page: diagnostic.tsv, for its server, has no labels",
        is_trained=False,
    ),
    Classification(
        "snli", "SNLI", ("accuracy",), GOLD, NLI, unlabelled="-", other_name="snli_1.0_{}.txt", has_test=True
    ),
]
SUITE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")
"""GLUE without WNLI, which BERT and most later work leave out: its dev examples recur in train with the other label."""
