"""Read the records of a part of a source, one module per file format."""
