"""Forecast the memory, time and cost of a run on a given number of GPUs.

gpus.py       datasheet figures of GPUs and their links
memory.py     bytes per rank, from the real model on the meta device
step_time.py  seconds per step: arithmetic, optimizer, communication, the slowest rank
forecast.py   all of it for one run, with warnings
"""
