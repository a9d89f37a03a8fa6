"""Show a run on W&B: one W&B run per training, alerts, artifacts, dashboards.

points.py            convert a line of metrics.jsonl to a point
connection.py        connect one process of a run to W&B (the only import of wandb)
tracker.py           the tracker that the training loop logs to
sync.py              send what W&B lacks
alerts.py            send at most one alert per cause and interval
run_identity.py      names of the stages: prepare, train, export
artifacts.py         index -> checkpoint -> model
dashboard_panels.py  sections and panels of the dashboard
dashboard.py         their spec (the only import of wandb-workspaces)
"""
