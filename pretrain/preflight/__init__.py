"""Check a run before it starts, and forecast its memory, time and cost on a given number of GPUs.

validate.py   values out of range, and settings that contradict each other
check_run.py  the settings beside the shards, a plan of each phase, the run's identity, and disk space
gpus.py       datasheet figures of GPUs and their links
memory.py     bytes per rank, from the real model on the meta device
step_time.py  seconds per step: arithmetic, the host, optimizer, communication, the slowest rank
warnings.py   settings that are allowed but may be unintended
forecast.py   all of it for one run, with warnings
show.py       a forecast as tables, or as plain values
"""
