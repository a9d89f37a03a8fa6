"""Tell a test that failed by comparing numbers from one that met an error in what it called, by pytest's report."""

import re
from xml.etree.ElementTree import Element

VALUES = ("AssertionError", "Failed", "assert ")
"""How the message of a comparison begins; torch's assert_close has no such beginning."""
FRAME = re.compile(r"^(\S+\.py):\d+: ", re.MULTILINE)
"""How a traceback names a frame; the last one has failed. Frames that hide themselves, as assert_close's, are left
out."""


def failed_by_values(failure: Element) -> bool:
    """Return whether the `failure` of a JUnit report, of a pytest that ran in the repository's folder, is of an assert
    in a file below tests/: those of Dynamo, of Triton or of ours are errors."""
    message = failure.get("message", "")
    frames = FRAME.findall(failure.text or "")
    compared = message.startswith(VALUES) or "Tensor-likes are not close" in message
    return compared and bool(frames) and frames[-1].startswith("tests/")
