"""Small plots as SVG, with nothing but text, lines and circles in them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

Point = tuple[float, float]

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 760, 190, 30, 50, 26
_LINES_HEIGHT, _LINES_BOTTOM = 300, 40
_COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#555", "#16a085", "#7f3b08")


@dataclass(frozen=True)
class Scale:
    """Puts values between two positions, by their logarithms."""

    least: float
    most: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Return the position of a value above zero."""
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Return round values to name: 1, 2 and 5 of each power of ten."""
        powers = range(math.floor(math.log10(self.least)), math.ceil(math.log10(self.most)) + 1)
        found = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [value for value in found if self.least <= value <= self.most]


def scale(values: Sequence[float], begin: float, end: float) -> Scale:
    """Return a scale with a little room around the values, all above zero."""
    return Scale(min(values) / 1.25, max(values) * 1.25, begin, end)


def strip(title: str, rows: Mapping[str, Sequence[float]]) -> str:
    """Return one row of dots for each name, all values of it in seconds, its median marked."""
    values = [value for each in rows.values() for value in each]
    if not values:
        return ""
    height = _TOP + _ROW * len(rows) + 30
    axis = scale(values, _LEFT, _WIDTH - _RIGHT)
    parts = list(_vertical_grid(axis, height - 25))
    for place, (name, each) in enumerate(rows.items()):
        y = _TOP + _ROW * (place + 0.5)
        colour = _COLOURS[place % len(_COLOURS)]
        parts.append(_text(_LEFT - 10, y + 4, name, "end"))
        parts += [_dot(axis.at(value), y, colour) for value in each]
        if each:
            x = axis.at(sorted(each)[(len(each) - 1) // 2])
            parts.append(_line((x, y - 9), (x, y + 9), colour, 2))
    return _drawing(title, height, parts)


def lines(title: str, series: Mapping[str, Mapping[int, float]]) -> str:
    """Return a line for each name: seconds over tokens, both on logarithmic scales."""
    values = [value for points in series.values() for value in points.values()]
    if not values:
        return ""
    tokens = sorted({x for points in series.values() for x in points})
    bottom = _TOP + _LINES_HEIGHT
    across = scale(tokens, 60, _WIDTH - _LEFT)
    upwards = scale(values, bottom, _TOP)
    parts = list(_horizontal_grid(upwards, 60, _WIDTH - _LEFT))
    parts += [_text(across.at(x), bottom + 18, f"{x:,} tokens", "middle") for x in tokens]
    for place, (name, points) in enumerate(series.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        spots = [(across.at(x), upwards.at(value)) for x, value in sorted(points.items())]
        parts += [_dot(*spot, colour) for spot in spots]
        parts += [_line(a, b, colour, 2) for a, b in itertools.pairwise(spots)]
        parts.append(_text(_WIDTH - _LEFT + 12, _TOP + 18 * place + 12, name, "start", colour))
    return _drawing(title, bottom + _LINES_BOTTOM, parts)


def _vertical_grid(axis: Scale, bottom: float) -> Iterator[str]:
    for value in axis.ticks():
        x = axis.at(value)
        yield _line((x, _TOP), (x, bottom), "#ddd", 1)
        yield _text(x, bottom + 16, _seconds(value), "middle")


def _horizontal_grid(axis: Scale, left: float, right: float) -> Iterator[str]:
    for value in axis.ticks():
        y = axis.at(value)
        yield _line((left, y), (right, y), "#ddd", 1)
        yield _text(left - 6, y + 4, _seconds(value), "end")


def _seconds(value: float) -> str:
    return f"{value * 1e3:g} ms" if value < 1 else f"{value:g} s"


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}">{escape(text)}</text>'


def _line(begin: Point, end: Point, colour: str, width: float) -> str:
    return (
        f'<line x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.6"/>'


def _drawing(title: str, height: float, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        f'width="{_WIDTH}" height="{height:.0f}" role="img" font-family="sans-serif" '
        'font-size="12">\n'
        f"<title>{escape(title)}</title>\n"
        f'<text x="10" y="24" font-size="15" fill="#222">{escape(title)}</text>\n{inside}\n</svg>\n'
    )
