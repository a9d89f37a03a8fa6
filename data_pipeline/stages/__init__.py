"""Run a preparation: cut it into tasks, run them on any executor, resume."""
