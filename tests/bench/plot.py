"""Lines over logarithmic axes, as SVG."""

from __future__ import annotations

import math
from typing import NamedTuple

WIDTH, HEIGHT = 400, 300
"""Of the axes of one panel, in pixels."""
LEFT, TOP, LABELS, BOTTOM = 64, 44, 205, 48
"""Around them; to the right stand the names of the lines."""
COLOURS = ("#0b6e99", "#c2410c", "#15803d", "#7c3aed", "#a16207", "#be185d")
FONT = 'font-family="system-ui, sans-serif" font-size="12" fill="#24292f"'
LEAST_GAP = 14
"""Pixels between two names."""


class Line(NamedTuple):
    """What was measured at each size."""

    name: str
    points: list[tuple[float, float]]


class Panel(NamedTuple):
    """Lines with one title."""

    title: str
    lines: list[Line]


def draw(title: str, panels: list[Panel], across: str, up: str) -> str:
    """Give the panels side by side, with the same axes."""
    every = [point for panel in panels for line in panel.lines for point in line.points]
    xs, ys = _decades(x for x, _ in every), _decades(y for _, y in every)
    wide, high = LEFT + WIDTH + LABELS, TOP + HEIGHT + BOTTOM
    size = f'viewBox="0 0 {wide * len(panels)} {high}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}" {FONT}>',
        f'<rect width="{wide * len(panels)}" height="{high}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number * wide + LEFT},{TOP})">')
        parts += [*_axes(xs, ys, across, up), *_lines(panel, xs, ys)]
        parts.append(f'<text x="0" y="-18" font-size="14" font-weight="600">{panel.title}</text></g>')
    return "\n".join([*parts, "</svg>", ""])


def _decades(values: object) -> tuple[int, int]:
    """Give the powers of ten around some values."""
    found = [value for value in values if value > 0]  # type: ignore[attr-defined]
    return math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))


def _place(value: float, ends: tuple[int, int], length: int) -> float:
    low, high = ends
    return (math.log10(max(value, 10.0**low)) - low) / (high - low) * length


def _axes(xs: tuple[int, int], ys: tuple[int, int], across: str, up: str) -> list[str]:
    parts = []
    for power in range(xs[0], xs[1] + 1):
        x = _place(10.0**power, xs, WIDTH)
        parts.append(f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{HEIGHT}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT + 18}" text-anchor="middle">{10**power:,}</text>')
    for power in range(ys[0], ys[1] + 1):
        y = HEIGHT - _place(10.0**power, ys, HEIGHT)
        parts.append(f'<line x1="0" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}" stroke="#d0d7de"/>')
        parts.append(f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT + 38}" text-anchor="middle">{across}</text>')
    parts.append(f'<text transform="translate(-46,{HEIGHT / 2}) rotate(-90)" text-anchor="middle">{up}</text>')
    return parts


def _lines(panel: Panel, xs: tuple[int, int], ys: tuple[int, int]) -> list[str]:
    parts, ends = [], []
    for line, colour in zip(panel.lines, COLOURS, strict=False):
        spots = [(_place(x, xs, WIDTH), HEIGHT - _place(y, ys, HEIGHT)) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in spots]
        ends.append((spots[-1][1], line.name, colour))
    below = -math.inf
    for y, name, colour in sorted(ends):
        below = max(y, below + LEAST_GAP)
        parts.append(f'<text x="{WIDTH + 8}" y="{below + 4:.1f}" fill="{colour}">{name}</text>')
    return parts
