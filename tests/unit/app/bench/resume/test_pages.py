from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.app.bench.resume import svg
from sessiond.app.bench.resume.html import page

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>alert('x')</script> & \"more\""


@given(
    values=st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=20),
    name=st.text(st.characters(min_codepoint=32, max_codepoint=0xD7FF), max_size=20),
)
def test_a_strip_has_every_value_inside_and_is_xml(values: list[float], name: str) -> None:
    drawn = ElementTree.fromstring(svg.strip(name, {name: values, "other": [1.0]}))
    dots = drawn.findall(f"{SVG}circle")
    assert len(dots) == len(values) + 1
    width = float(drawn.attrib["width"])
    assert all(0 < float(dot.attrib["cx"]) < width for dot in dots)


@given(first=st.floats(1e-3, 1e2), second=st.floats(1e-3, 1e2))
def test_a_larger_value_lies_further(first: float, second: float) -> None:
    scale = svg.scale([first, second], 10, 110)
    assert (scale.at(first) < scale.at(second)) == (first < second)
    assert all(10 <= scale.at(value) <= 110 for value in (first, second))


def test_ticks_are_round_values_within() -> None:
    assert svg.Scale(0.03, 0.6, 0, 1).ticks() == pytest.approx([0.05, 0.1, 0.2, 0.5])


def test_lines_join_the_points_of_a_name() -> None:
    drawn = ElementTree.fromstring(
        svg.lines("t", {"a": {2048: 1.0, 4096: 3.0, 7936: 8.0}, "b": {2048: 0.1}})
    )
    assert len(drawn.findall(f"{SVG}circle")) == 4
    joined = [one for one in drawn.findall(f"{SVG}line") if one.attrib["stroke"] != "#ddd"]
    assert len(joined) == 2


def test_nothing_to_draw_is_no_drawing() -> None:
    assert svg.strip("t", {}) == svg.lines("t", {}) == ""


class Reader(HTMLParser):
    """Collects the tags of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


EFFECT: dict[str, object] = {
    "contexts": 15,
    "tokens_each": 64,
    "identical_share": 0.75,
    "diverged_contexts": 9,
    "first_divergence_median": 20,
    "logprob_difference_mean_nats": 0.05,
    "logprob_difference_largest_nats": 0.5,
    "resumed_contexts_identical": 15,
}


def report() -> dict[str, object]:
    """Return a report whose every text is hostile."""
    row = {"series": EVIL, "scenario": "cold", "tokens": 7936, "count": 5, "p50_s": 0.25}
    gate = {"name": EVIL, "what": EVIL, "must": 0.025, "measured": None, "met": None}
    return {
        "model": EVIL,
        "contexts": [7936],
        "rounds": 5,
        "kv_cache_dtype": EVIL,
        "effect_on_tokens": EFFECT | {"by_context": [{"context": EVIL, "tokens": 64}]},
        "page_cache_dropped": True,
        "tokens_checked": 12,
        "gates": [
            gate | {"reason": EVIL},
            gate | {"measured": 0.03, "met": False, "reason": ""},
        ],
        "distributions": [row | {"mean_s": 1 / 3}],
        "cold_starts": [{"contestant": EVIL, "start_s": 31.5}],
        "usage": [],
        "offload_on_vs_off": {EVIL: {"first-turn": 1.01, "warm-turn": None}},
        "capacity": {EVIL: EVIL},
        "cost": {
            "latency_bound_s": 1.0,
            "prices": {},
            "by_series": {EVIL: {"served_within_bound": 0.5, "cost": None, "reason": EVIL}},
        },
        "not_measured": {EVIL: EVIL},
        "configuration": {"seed": 3, EVIL: EVIL},
        "machine": {"cpu": EVIL},
        "versions": {EVIL: EVIL},
    }


def test_no_text_of_a_report_becomes_part_of_the_page() -> None:
    reader = Reader()
    reader.feed(page(report(), {}))
    assert "script" not in reader.tags
    assert EVIL in reader.text
    assert reader.text.count("alert") >= 10


def test_the_page_holds_everything_itself() -> None:
    drawing = svg.strip("plot", {"a": [0.1, 0.2]})
    text = page(report(), {"cold": drawing})
    reader = Reader()
    reader.feed(text)
    assert drawing in text
    assert reader.links == []
    assert "not met" in reader.text
    assert "≤ 0.025" in reader.text
    assert "0.25" in reader.text
