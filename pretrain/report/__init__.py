"""Describe a run from its files: status, inspection, report.html."""
