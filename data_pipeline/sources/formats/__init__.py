"""Read one file format each: a unit of a source into its records."""
