"""Compute the score of the best way to cut a word into the pieces of a unigram vocabulary (Kudo 2018, section 3.2)."""

from collections.abc import Mapping

UNKNOWN_PENALTY = 10.0
"""An unknown character's score is so much below the least score of all pieces, as in SentencePiece."""


def best_score(word: str, scores: Mapping[str, float], unknown: float) -> float:
    """Return the greatest sum of scores over all ways to cut `word` into pieces (Viterbi). A character that is no piece
    by itself may also be cut off with the score `unknown`."""
    best = [0.0]
    for end in range(1, len(word) + 1):
        cut = [best[start] + scores[word[start:end]] for start in range(end) if word[start:end] in scores]
        if word[end - 1] not in scores:
            cut.append(best[end - 1] + unknown)
        best.append(max(cut))
    return best[-1]
