"""Record what happens in a run: metrics, events, terminal output, W&B, TensorBoard.

run_log.py          what the training loop reports to: figures and events for files, tracker and terminal
terminal.py         show a run as a panel or as lines
tracker.py          the trackers of monitor.tracker, alerts, and `maskmill sync`
wandb_run.py        connect to a run on W&B, send points and artifacts (the only import of wandb)
wandb_dashboard.py  sections and panels of a dashboard, and their spec (the only import of wandb-workspaces)
tensorboard.py      the tracker that writes event files (the only import of tensorboardX)
"""
