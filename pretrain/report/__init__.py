"""A run folder in, report.html out: one page that needs nothing but a browser, on a phone or a desk.

record.py    the folder's files -> RunRecord, forgiving what a killed run leaves behind
charts.py    series of numbers -> pictures (SVG) with the numbers beside them
curves.py    which pictures a run gets
facts.py     headline, settings, data, checkpoints, how to run it again
page.py      the whole page, with page.css and page.js inside
"""

from pretrain.report.page import render

__all__ = ["render"]
