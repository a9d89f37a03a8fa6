"""Draw report.html of a run folder: one page that needs nothing but a browser, on a phone or a desktop.

record.py                   read the folder's files into a RunRecord, even those of a killed run
charts/                     draw series of numbers as pictures (SVG) with their numbers
breakdown.py, history.py    show where the time went; starts, checkpoints, disturbances
advice.py, headline.py, tiles.py    show what to look at and how well it did, at a glance
statistics.py, provenance.py        show the data, how to re-run it, every setting
page.py                     write the whole page, with page.css and page.js inside
"""

from pretrain.report.html.page import render

__all__ = ["render"]
