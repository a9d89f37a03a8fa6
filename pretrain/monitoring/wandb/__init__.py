"""Show a run on W&B: one run for one training, alerts, artifacts, dashboards.

points.py      a line of metrics.jsonl -> a point
connection.py  one process of a run on W&B (the only import of wandb)
tracker.py     what the training loop logs to
sync.py        what W&B has not, sent later
alerts.py      what is wrong -> at most one alert an hour
run_identity.py      prepare, train, export: what each is called
artifacts.py         index -> checkpoint -> model
dashboard_panels.py  sections and panels of the dashboard
dashboard.py         their spec (the only import of wandb-workspaces)
"""
