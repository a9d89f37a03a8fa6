"""Write the files of tasks in their official shapes."""

import json
from pathlib import Path
from typing import Any

PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
NLI_TRAIN = f"index promptID pairID genre {PARSES} sentence1 sentence2 label1 gold_label".replace(" ", "\t")
NLI_DEV = NLI_TRAIN.replace("label1", "\t".join(f"label{i}" for i in range(1, 6)))
SNLI = f"index captionID pairID {PARSES} sentence1 sentence2 label1 gold_label".replace(" ", "\t")
STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"


OTHER = {"neutral": "contradiction", "entailment": "neutral", "contradiction": "entailment"}
"""Another class than this one."""


def nli(gold: str, texts: str = "A man.\tA woman.", labels: int = 1) -> str:
    """A row of MNLI, whose gold label is none of its annotators'."""
    said = [OTHER[gold]] * labels
    return "\t".join(["0", "1", "1e", "fiction", "(", "(", "(", "(", texts, *said, gold])


SQUAD = {
    "id": "1",
    "question": "Who slept?",
    "answers": [{"text": "fox", "answer_start": 10}],
}
ARTICLES = {"data": [{"paragraphs": [{"context": "the quick fox slept", "qas": [SQUAD]}]}]}
TREES = [
    "# sent_id = 1",
    "1\tThe\tthe\tDET\tDT\tDefinite=Def\t2\tdet\t_\t_",
    "2\tdogs\tdog\tNOUN\tNNS\tNumber=Plur\t4\tnsubj\t_\t_",
    "3-4\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_",
    "3\tdid\tdo\tAUX\tVBD\tTense=Past\t4\taux\t_\t_",
    "4\tn't\tnot\tPART\tRB\t_\t0\troot\t_\t_",
    "5\tsleep\tsleep\tVERB\tVB\tVerbForm=Inf\t4\txcomp\t_\t_",
    "",
    "# sent_id = 2",
    "1\tSome\tsome\tDET\tDT\t_\t2\tdet\t_\t_",
    "2\tfoxes\tfox\tNOUN\tNNS\tNumber=Plur\t3\tnsubj\t_\t_",
    "3\tjumped\tjump\tVERB\tVBD\tTense=Past\t0\troot\t_\t_",
    "4\tover\tover\tADP\tIN\t_\t5\tcase\t_\t_",
    "5\tit\tit\tPRON\tPRP\tNumber=Sing|Person=3\t3\tobl\t_\t_",
    "5.1\tjumped\tjump\tVERB\tVBD\t_\t_\t_\t_\t_",
    "",
]
FILES: dict[str, dict[str, list[str]]] = {
    "cola": {
        "train.tsv": [
            "gj04\t1\t\tOur friends won't buy this.",
            'gj04\t0\t*\t"The car honked.',
            'gj04\t0\t*\tThe "car honked.',
        ],
        "dev.tsv": ["gj04\t1\t\tThe sailors rode."],
    },
    "sst2": {
        "train.tsv": ["sentence\tlabel", "hide new secretions \t0", "fun \t1"],
        "dev.tsv": ["sentence\tlabel", "charming \t1"],
    },
    "mrpc": {
        "train.tsv": [
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            '1\t7\t8\tHe said " no .\tNo , he said .',
            '1\t7\t8\t" No , he said .\tHe said no .',
            "0\t7\t8\tA\tB",
        ],
        "dev.tsv": ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t7\t8\tA\tB"],
    },
    "qqp": {
        "train.tsv": [
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            "0\t1\t2\tWhy?\tWhy not?\t0",
            "1\t1\t2\tcut short",
        ],
        "dev.tsv": ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tWhy?\tHow?\t1"],
    },
    "stsb": {
        "train.tsv": [STSB, "0\tn\tf\t2012\t1\ts\ts\tA plane.\tAn air plane.\t5.000"],
        "dev.tsv": [STSB, "0\tn\tf\t2012\t1\ts\ts\tA.\tB.\t0.600"],
    },
    "mnli": {
        "train.tsv": [NLI_TRAIN, nli("neutral"), nli("entailment")],
        "dev_matched.tsv": [NLI_DEV, nli("contradiction", labels=5)],
        "dev_mismatched.tsv": [NLI_DEV, nli("entailment", labels=5)],
    },
    "qnli": {
        "train.tsv": ["index\tquestion\tsentence\tlabel", "0\tWhen?\tThen.\tentailment"],
        "dev.tsv": ["index\tquestion\tsentence\tlabel", "0\tWhen?\tNo.\tnot_entailment"],
    },
    "rte": {
        "train.tsv": ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\tnot_entailment"],
        "dev.tsv": ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\tentailment"],
    },
    "wnli": {
        "train.tsv": ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\t1"],
        "dev.tsv": ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\t0"],
    },
    "snli": {
        "train.tsv": [SNLI, "0\tc\tp\t(\t(\t(\t(\tA.\tB.\tentailment\tneutral"],
        "dev.tsv": [
            SNLI,
            "0\tc\tp\t(\t(\t(\t(\tA.\tB.\tneutral\tentailment",
            "1\tc\tp\t(\t(\t(\t(\tA.\tB.\tneutral\t-",
        ],
    },
    "codah": {
        "train.tsv": ["o\tI am hungry. I am\teating.\ta car.\tblue.\tasleep.\t0"],
        "dev.tsv": ["i\tHe\truns.\tis.\twas.\thas.\t3"],
    },
    "conll2003": {
        "eng.train": [
            "-DOCSTART- -X- -X- O",
            "",
            "EU NNP I-NP I-ORG",
            "# NN I-NP O",
            "",
            "Rome NNP I-NP I-LOC",
        ],
        "eng.testa": ["-DOCSTART- -X- O O", "", "Paris NNP I-NP I-LOC", "Lyon NNP I-NP B-LOC", ""],
    },
    "wnut17": {
        "wnut17train.conll": ["#hash\tO", "Empire\tB-location", "State\tI-location", "\t", "I\tO"],
        "emerging.dev.conll": ["So\tO", "", "Bill\tB-person", "\ufeff"],
    },
    "uner": {
        "en_ewt-ud-train.iob2": [
            "# text = Al",
            "1\tAl\tB-ORG\t-\tx",
            "2\t.\tB-O\t-\tx",
            "3\t!\tO",
            "",
            "1\tX\tB-OTH\t-\tx",
        ],
        "en_ewt-ud-dev.iob2": ["1\tJoe\tB-PER\t-\tx"],
    },
    "own": {
        "train.jsonl": ['{"text": "good", "label": 1}', '{"text": "bad", "label": 0}'],
        "dev.tsv": ["label\ttext", "1\tfine"],
    },
    "tagging": {"train.txt": ["a b X B-A", "c d e O"], "dev.txt": ["c O"]},
}
SWAG = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
FILES["swag"] = {
    "train.csv": [f",{SWAG}", '0,v,1,"A, b",He sits.,He,gold,"sits, down",runs,eats,is,0'],
    "val.csv": [f",{SWAG}", "0,v,1,A b,He sits.,She,gold,a,b,c,d,2"],
}

AX = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel"
FILES["ax"] = {
    "diagnostic-full.tsv": [AX, "Quantifiers\t\t\t\tNews\tThe fox jumped.\tNo fox jumped.\tcontradiction"]
}
FILES["ud"] = {f"en_test-ud-{name}.conllu": TREES for name in ("train", "dev")}
FILES["squad1"] = {f"{name}-v1.1.json": [json.dumps(ARTICLES)] for name in ("train", "dev")}
FILES["squad2"] = {f"{name}-v2.0.json": [json.dumps(ARTICLES)] for name in ("train", "dev")}
FILES["questions"] = {f"{name}.json": [json.dumps(ARTICLES)] for name in ("train", "dev")}


def write(folder: Path, files: dict[str, list[str]]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write_pairs(folder: Path, count: int = 20) -> Path:
    """Write three sets of BLiMP of so many pairs each."""
    folder.mkdir(exist_ok=True)
    for name, group in (("one", "s-selection"), ("two", "argument_structure"), ("three", "ellipsis")):
        rows = [
            {
                "sentence_good": f"the fox {i}",
                "sentence_bad": f"fox the {i}",
                "linguistics_term": group,
                "UID": name,
            }
            for i in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def check_facts(note: dict[str, Any], task: str) -> None:
    """Check that a result.json says all that makes its scores comparable with others."""
    details = note["details"]
    assert note["source"], "where the task is from"
    assert isinstance(details["version"], str)
    assert all(len(digest) == 64 for digest in note["files"].values())
    splits = set(note["scores"])
    assert splits <= details["examples"].keys() == details["skipped"].keys()
    assert all(count >= 0 for count in details["skipped"].values())
    assert all(note["headline"] in scores for scores in note["scores"].values())
    assert len(note["seeds"]) == len(note["scores"][min(splits)][note["headline"]]["values"])
    floors = note["not_pretrained"]
    assert len(note["floor_seeds"]) == (len(floors[min(splits)][note["headline"]]["values"]) if floors else 0)
    assert {"lr", "head_lr", "epochs", "batch", "max_length", "tune_share", "recipe"} <= note[
        "settings"
    ].keys()
    assert details["selection"].keys() >= {"set", "chooses"}
    assert details["selection"]["set"] not in splits, "what is scored chooses nothing"
    ids = details["labels"]
    for labels in ids.values() if task == "ud" else [ids]:
        assert sorted(labels.values()) == list(range(len(labels)))
    assert note["segments"] is None or note["segments"].keys() == {"single", "pair"}
    assert "no mean over tasks" in note["mean"]
    assert "WNLI" in note["mean"]
    [conditions] = note["conditions"]
    assert {"maskmill", "torch", "transformers"} <= conditions["versions"].keys()
    assert (conditions["precision"], conditions["device"][:9]) == ("fp32", "CPU with ")
