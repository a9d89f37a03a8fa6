"""Draw report.html of a run folder: one page that needs nothing but a browser, on a phone or a desk.

record.py                   the folder's files -> RunRecord, forgiving what a killed run leaves behind
charts/                     series of numbers -> pictures (SVG) with the numbers behind them
breakdown.py, history.py    where the time went; starts, checkpoints, disturbances
advice.py, headline.py, tiles.py    what to look at; how well it did, in a look
statistics.py, provenance.py        the data; how to run it again, every setting
page.py                     the whole page, with page.css and page.js inside
"""

from pretrain.report.html.page import render

__all__ = ["render"]
