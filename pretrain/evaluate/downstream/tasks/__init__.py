"""Define the tasks: a file per kind reads their files, builds inputs and scores predictions."""
