"""Sources in, a trained vocabulary out: which documents it learns from is decided here."""

from collections.abc import Callable, Iterator

from data_pipeline.counts import Counts
from data_pipeline.executors import Stage
from data_pipeline.records import Document
from data_pipeline.settings import DataSettings, VocabularySettings, required
from data_pipeline.sources import discover, read
from data_pipeline.vocabulary import Vocabulary, save_vocabulary, train_vocabulary


def learn_vocabulary(settings: DataSettings, vocabulary: VocabularySettings, stage: Stage) -> Vocabulary:
    """Trains a WordPiece vocabulary on the sources' first documents and writes it into the folder data.vocab."""
    folder = required(settings.vocab, "data.vocab", "a folder for the vocabulary")

    def sample(advance: Callable[[int], None]) -> Iterator[Document]:
        left = vocabulary.sample_mb * 1_000_000
        for source in discover(settings):
            for document in read(source, settings, Counts()):
                yield document
                advance(1)
                left -= len(document.text)
                if left <= 0:
                    return

    with stage("learning a vocabulary from documents", 0) as advance:
        result = train_vocabulary(sample(advance), vocabulary)
    save_vocabulary(result, folder)
    return result
