"""Memory over time per card as a picture: the same shapes as SVG, or as PNG where Pillow is installed."""

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import NamedTuple
from xml.sax.saxutils import escape

from paddock.cli.problem import Problem
from paddock.cli.words import clean, model_of
from paddock.core.fleet import Device, Fleet
from paddock.core.quantity import human
from paddock.core.simulate import Result

WIDTH, ROW, LEFT = 960, 34, 260
"""In pixels: the whole, one card, and the names."""
LONGEST = 40
"""Characters of a name."""
SIZE = 13
"""Of letters, in pixels."""
BLUE, GREY = "#4a7fb5", "#bbbbbb"

Point = tuple[float, float]


class Words(NamedTuple):
    """A line of text; the point is the left end of its base line."""

    at: Point
    text: str
    bold: bool = False


class Area(NamedTuple):
    """A filled polygon, and the frame that it is drawn in."""

    points: tuple[Point, ...]
    frame: tuple[Point, Point]


def svg(fleet: Fleet, results: Mapping[str, Result]) -> str:
    """Draw each card's memory over time, one block of rows per result."""
    fonts = f'font-family="sans-serif" font-size="{SIZE}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{_height(fleet, results)}" {fonts}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for shape in _shapes(fleet, results):
        if isinstance(shape, Words):
            x, y = shape.at
            weight = ' font-weight="bold"' if shape.bold else ""
            out.append(f'<text x="{x}" y="{y}"{weight}>{clean(escape(shape.text))}</text>')
        else:
            (x, y), (right, bottom) = shape.frame
            points = " ".join(f"{px:.1f},{py:.1f}" for px, py in shape.points)
            size = f'width="{right - x}" height="{bottom - y}"'
            out.append(f'<rect x="{x}" y="{y}" {size} fill="none" stroke="{GREY}"/>')
            out.append(f'<polygon points="{points}" fill="{BLUE}"/>')
    return "\n".join([*out, "</svg>\n"])


def png(fleet: Fleet, results: Mapping[str, Result]) -> bytes:
    """Draw the same as PNG; Problem without Pillow."""
    try:
        from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415 an optional extra
    except ImportError as error:
        raise Problem("a PNG needs Pillow: pip install 'paddock[picture]', or use --svg") from error
    image = Image.new("RGB", (WIDTH, _height(fleet, results)), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(SIZE)
    for shape in _shapes(fleet, results):
        if isinstance(shape, Words):
            draw.text(shape.at, clean(shape.text), fill="black", font=font, anchor="ls", stroke_width=0.4 * shape.bold)
        else:
            draw.polygon(shape.points, fill=BLUE)
            draw.rectangle(shape.frame, outline=GREY)
    out = BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def name_of(device: Device) -> str:
    """Name a card in few words."""
    return f"{device.name} {model_of(device.description)}"


def _height(fleet: Fleet, results: Mapping[str, Result]) -> int:
    return ROW * (len(fleet.devices) + 1) * len(results) + ROW


def _shapes(fleet: Fleet, results: Mapping[str, Result]) -> Iterator[Words | Area]:
    top = ROW
    for name, one in results.items():
        yield Words((8, top), f"{name}: {share(one):.1f} % served", bold=True)
        for number, device in enumerate(fleet.devices):
            top += ROW
            label = f"{device.node} {name_of(device)} {human(device.total or 0)}"
            yield Words((8, top), label[:LONGEST])
            yield _area(one, number, device, top)
        top += ROW


def share(one: Result) -> float:
    """Give the share of the wanted memory times time that was served, in per cent."""
    return 100 * one.served_byte_seconds / one.wanted_byte_seconds if one.wanted_byte_seconds else 100.0


def _area(one: Result, number: int, device: Device, bottom: int) -> Area:
    """Draw one card: a step line of what is in use, as a filled area."""
    end, room, tall = max(1, one.samples[-1].time if one.samples else 1), WIDTH - LEFT - 8, ROW - 8
    points: list[Point] = [(LEFT, bottom)]
    before = 0.0
    for sample in one.samples:
        x = LEFT + room * sample.time / end
        after = tall * sample.used[number] / max(1, device.total or 1)
        points += [(x, bottom - before), (x, bottom - after)]
        before = after
    points += [(LEFT + room, bottom - before), (LEFT + room, bottom)]
    return Area(tuple(points), ((LEFT, bottom - tall), (LEFT + room, bottom)))
