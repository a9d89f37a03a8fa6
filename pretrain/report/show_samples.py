"""Save the blanks that an export filled, and show them in the run's report."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from data_pipeline.errors import printable
from pretrain.report.html.page import REPORT, render
from pretrain.run.folder import SAMPLES

if TYPE_CHECKING:
    from pretrain.export.fill import Sample


def show_samples(run: Path, step: int, samples: "list[Sample]", held_out: bool) -> None:
    """Save the filled blanks in the run folder, and re-write its report with them, if it has one. The export is done by
    then: a run folder that cannot be written is left as it is."""
    from pretrain.export.fill import write_samples  # imports torch, which a report does without

    try:
        write_samples(run, step, samples, held_out)
        if (run / REPORT).is_file():
            render(run)
    except OSError as error:
        print(printable(f"maskmill: WARNING: {run / SAMPLES}: {error.strerror}"), file=sys.stderr)
