"""Show a run on W&B: one run for one training, alerts, artifacts, dashboards.

points.py     a line of metrics.jsonl -> a point            alerts.py      what is wrong -> at most one alert an hour
connection.py one life of a run on W&B (the door to wandb)  run_identity.py  prepare, train, export: what each is called
tracker.py    the loop's tracker                            artifacts.py   artifacts: index -> checkpoint -> model
run/uploaded.py  which lines W&B has                           sync.py        what it has not, sent later
dashboard_panels.py  sections and panels of the dashboard          dashboard.py   their spec (the door to
wandb-workspaces)
"""
