"""Forecast memory, time and cost of a run on a number of GPUs before anyone pays.

gpus.py       what a GPU and its links can do, as their makers state it
memory.py     bytes a rank needs, from the real model on the meta device
step_time.py  seconds a step takes: arithmetic, optimizer, communication, the slowest rank
forecast.py   all of it for one run, and what does not add up
"""
