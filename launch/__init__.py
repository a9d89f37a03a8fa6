"""Define the command line: parse, build, call."""
