"""Provide what the training loop (pretrain/train.py) uses: starting, resuming, batches, losses and validation.

before_ranks.py           what one process checks before any rank starts, the run's folder, and its micro-batch
start.py                  the folder, checks and a summary, once all ranks are connected
initial_weights_check.py  whether a run can start from init_from, by small files and headers
initial_weights.py        the weights of init_from, changed to those that a run starts from
resume.py                 an engine's weights and the position of a run, loaded and saved
progress.py               the counts of a global batch, the position of a run, and the ends of phases
feed.py                   micro-batches on the device, and a model compiled for their shape
guard.py                  which batches are accepted, and the means of their losses
rank_timing.py            when each rank computes and waits
stream_memory.py          a model's memory of each data stream
validation.py             figures on held-out examples, and on a small task
"""
