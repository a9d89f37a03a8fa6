"""Read one file format each: a part of a source into its records."""
