"""Name where the files of each task are published."""

GLUE = "GLUE (Wang et al. 2019), gluebenchmark.com/tasks"
SQUAD = "rajpurkar.github.io/SQuAD-explorer"
SOURCES: dict[str, str] = {
    **dict.fromkeys(("cola", "sst2", "qqp", "stsb", "mnli", "rte", "wnli"), GLUE),
    "mrpc": f"{GLUE}; its texts are Microsoft's paraphrase corpus (Dolan and Brockett 2005), split by GLUE's ids",
    "qnli": f"{GLUE}; the second version, of 2019, has 104,743 training examples",
    "ax": f"{GLUE}; diagnostic-full.tsv has the labels",
    "snli": "SNLI (Bowman et al. 2015), nlp.stanford.edu/projects/snli",
    "swag": "SWAG (Zellers et al. 2018), github.com/rowanz/swagaf",
    "codah": "CODAH (Chen et al. 2019), github.com/Websail-NU/CODAH",
    "squad1": f"SQuAD 1.1 (Rajpurkar et al. 2016), {SQUAD}",
    "squad2": f"SQuAD 2.0 (Rajpurkar et al. 2018), {SQUAD}",
    "conll2003": "CoNLL-2003 (Tjong Kim Sang and De Meulder 2003), www.clips.uantwerpen.be/conll2003/ner",
    "uner": "Universal NER (Mayhew et al. 2024), www.universalner.org",
    "wnut17": "WNUT 2017 (Derczynski et al. 2017), noisy-text.github.io/2017/emerging-rare-entities.html",
    "ud": "Universal Dependencies (de Marneffe et al. 2021), universaldependencies.org",
    "blimp": "BLiMP (Warstadt et al. 2020), github.com/alexwarstadt/blimp",
}
"""Task -> publication and official page. Tasks of a user's own files have none; which release files are of is known by
their hashes."""
