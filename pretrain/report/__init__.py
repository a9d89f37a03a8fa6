"""Describe a run from its files: status, inspection, report.html.

status.py       say how a run is, and what to do next
inspection.py   describe a run, a checkpoint or an exported model, and verify their hashes

report.html is one page that needs nothing but a browser, on a phone or a desktop:

record.py       read the folder's files into a RunRecord, even those of a killed run
charts.py       draw series of numbers as pictures (SVG) with their numbers; also those of studies
curves.py       choose what a run's charts show, and draw its trust ratios by layer
history.py      show where the time went; starts, checkpoints, disturbances
summary.py      show what to look at and how well it did, at a glance
statistics.py   show the data
page.py         show tasks, blanks, how to re-run it and every setting; write the whole page, with page.css and page.js
"""
