"""Pictures are SVG that stands alone: names are escaped, and what lies outside is an arrow."""

import xml.etree.ElementTree as ET

from pretrain.report.charts import Line, Panel, Strip, strip_svg, svg

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_lifts_its_pen_over_what_lies_outside() -> None:
    inside = [(1.0, 2.0), (2.0, 1.0), (3.0, float("inf")), (4.0, 9.0), (5.0, 1.0)]
    panel = Panel("a < b", "x", "y", [Line("one", inside)], {"level": 1.5}, ceiling=3.0)
    root = ET.fromstring(svg([panel], "words"))
    assert root.find(f"{SVG}title").text == "a < b"
    line = next(p for p in root.iter(f"{SVG}path") if p.get("class") == "line" and p.get("d").count("L") == 1)
    assert line.get("d").count("M") == 2
    assert len([p for p in root.iter(f"{SVG}path") if p.get("fill")]) == 2  # arrows at the top
    assert len(list(root.iter(f"{SVG}circle"))) == 3


def test_a_strip_leaves_out_what_is_not_finite() -> None:
    rows = {"a < b": [1.0, float("inf"), 3.0], "none": []}
    root = ET.fromstring(strip_svg(Strip("title", "x", rows, {"level": 2.0}), "words"))
    assert len(list(root.iter(f"{SVG}circle"))) == 2
    assert [path for path in root.iter(f"{SVG}path") if path.get("class") == "line"]
    assert {"a < b", "none", "- - level (2)"} <= {text.text for text in root.iter(f"{SVG}text")}
    (bar,) = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("class") == "line"]
    centres = [float(circle.get("cx")) for circle in root.iter(f"{SVG}circle")]
    assert float(bar[1:].split(" ")[0]) == sum(centres) / 2
