"""Draw report.html of a run folder: one page that needs nothing but a browser, on a phone or a desk.

run/read_files.py, record.py       the folder's files -> RunRecord, forgiving what a killed run leaves behind
report/html/charts/scales.py, report/html/charts/figures.py  numbers -> axes, text, tables
report/html/charts/draw.py, report/html/charts/heat.py  series of numbers -> pictures (SVG) with the numbers behind them
report/html/charts/curves.py  which pictures a run gets: a table
breakdown.py, history.py    where the time went; lives, checkpoints, disturbances
advice.py, headline.py      what to look at; how well it did, in a look
statistics.py, provenance.py    the data; how to run it again, every setting
page.py                     the whole page, with page.css and page.js inside
"""

from pretrain.report.html.page import render

__all__ = ["render"]
