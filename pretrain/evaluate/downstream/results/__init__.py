"""Hold the results of tasks: their files, and a table of them."""
