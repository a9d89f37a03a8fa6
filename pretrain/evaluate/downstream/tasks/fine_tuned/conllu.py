"""Read and write sentences in CoNLL-U, the format of Universal Dependencies."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream import metrics
from pretrain.evaluate.downstream.tasks.splits import Split, not_empty
from pretrain.evaluate.downstream.tasks.tables import at_line, read_lines

FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL = 1, 2, 3, 4, 5, 6, 7
COLUMNS = 10
TAGS = {"upos": UPOS, "xpos": XPOS, "feats": FEATS, "lemma": LEMMA}
"""Column of the file that each tagger predicts; lemmas by rules."""
RELATIONS = "deprel"


class Tree(NamedTuple):
    """A sentence: its rows as they are in the file, and which of them are words."""

    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...]

    def column(self, number: int) -> list[str]:
        """Return one column of the words."""
        return [self.rows[row][number] for row in self.words]


def read_trees(name: str, path: Path) -> Split:
    """Return the sentences of a file. Raises UserError for one that the official scorer refuses, and without a
    sentence."""
    lines = read_lines(path)
    _check_numbers(lines, path)
    text = "\n".join(lines) + "\n"
    metrics.check_conllu(text, path)
    return not_empty(Split(name, list(_trees(text))), path)


def _check_numbers(lines: Sequence[str], path: Path) -> None:
    """Raise UserError for a word without the number of its head: within multi-word tokens the official scorer looks for
    none."""
    for number, line in enumerate(lines, 1):
        cells = line.split("\t")
        if cells[0].isdigit() and len(cells) == COLUMNS and not cells[HEAD].isdigit():
            raise UserError(
                f"has the head {cells[HEAD]!r}",
                where=at_line(path, number),
                expected="the number of a word, or 0",
            )


def _trees(text: str) -> Iterator[Tree]:
    """Yield the sentences of a file that the official scorer has accepted."""
    rows: list[tuple[str, ...]] = []
    for line in text.split("\n"):
        if line.startswith("#"):
            continue
        if line:
            rows.append(tuple(line.split("\t")))
        elif rows:
            yield Tree(tuple(rows), tuple(i for i, row in enumerate(rows) if row[0].isdigit()))
            rows = []


def written(tree: Tree, columns: dict[str, list[str]], heads: Sequence[int]) -> str:
    """Return the sentence in CoNLL-U with these columns and heads, the rest as it is. Exactly the root's child has the
    relation root."""
    rows = [list(row) for row in tree.rows]
    for i, row in enumerate(tree.words):
        for name, number in TAGS.items():
            rows[row][number] = columns[name][i]
        rows[row][HEAD] = str(heads[i])
        relation = columns[RELATIONS][i]
        rows[row][DEPREL] = "root" if heads[i] == 0 else ("dep" if relation == "root" else relation)
    return "".join("\t".join(row) + "\n" for row in rows) + "\n"
