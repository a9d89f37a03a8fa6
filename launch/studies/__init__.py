"""Ship studies, a YAML file each, and run their arms; launch/studies/NAME.yaml is `maskmill study NAME`."""

from pathlib import Path

STUDIES = Path(__file__).parent


def study_names() -> list[str]:
    """Return the names that a STUDY argument may have."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))
