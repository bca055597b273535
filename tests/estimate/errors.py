"""The table of measured errors in docs/estimate.md: `python -m estimate.errors` writes it from the estimates.

The table names the data that it was made of by a digest, so that a test can say in no time that it is out of date.
"""

import hashlib
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from estimate import table
from estimate.options import WHOLE
from estimate.table import Measured
from paddock.core import templates
from paddock.core.estimate import MemoryEstimate, Place, estimate

PAGE: Final = Path(__file__).parents[2] / "docs" / "estimate.md"
START, END = "<!-- errors -->", "<!-- errors end -->"
_CORE: Final = Path(templates.__file__).parent
DATA: Final = (table.TABLE, _CORE / templates.STEPS, _CORE / templates.OPERATIONS)
PLACES: Final[tuple[Place, ...]] = ("device", "host")


class Error(NamedTuple):
    """How one estimate differs from llama.cpp's number; the larger one of device and host counts."""

    exact: bool
    weights: float
    cache: float
    compute: float


def compute(found: MemoryEstimate, place: Place) -> tuple[int, bool]:
    """Give the compute buffer in a place in bytes, and whether it is no bound."""
    parts = [one for one in found.addends if one.place == place and one.kind == "compute"]
    return sum(one.bytes for one in parts), all(one.source != "bound" for one in parts)


def difference(found: MemoryEstimate, measured: Measured) -> Error:
    """Compare an estimate with what was measured."""
    rows = list(zip(PLACES, (measured.device, measured.host), strict=True))
    return Error(
        all(compute(found, place)[1] for place, _ in rows),
        max(_off(found.sum(place, "weights"), row[0]) for place, row in rows),
        max(_off(found.sum(place, "kvCache"), row[1]) for place, row in rows),
        max((_off(compute(found, place)[0], row[2]) for place, row in rows), key=abs),
    )


def _off(value: int, truth: int) -> float:
    return (value - truth) / truth if truth else float(value > 0)


def errors(names: list[str]) -> dict[str, dict[str, Error]]:
    """Give the errors of models by option set."""
    found: dict[str, dict[str, Error]] = defaultdict(dict)
    for name in names:
        for options, measured in table.measured(name).items():
            if isinstance(measured, Measured):
                found[name][options] = difference(estimate(table.summary(name), table.options(options)), measured)
    return dict(found)


def _row(title: str, found: list[Error]) -> str:
    equal = sum(one.exact for one in found)
    worst = max((abs(one.compute) for one in found if one.exact), default=0.0)
    bounds = sorted(one.compute for one in found if not one.exact)
    over = f"+{bounds[0]:.1%} to +{bounds[-1]:.1%}, median +{bounds[len(bounds) // 2]:.1%}" if bounds else "-"
    within = sum(one <= 0.1 + 1e-9 for one in bounds)
    exact = sum(not one.weights and not one.cache for one in found)
    return f"| {title} | {len(found)} | {exact} | {equal} | {worst:.2%} | {len(bounds)} | {within} | {over} |"


def text() -> str:
    """Give the table."""
    lines = [
        f"{START}<!-- {digest()} -->",
        "",
        "| models, options | estimates | weights, cache equal | compute exact | worst | bounds | within 10 % | above |",
        "|---|---|---|---|---|---|---|---|",
    ]
    wide = []
    groups = {
        "test-llama-archs": table.architectures(),
        "published shapes": table.published(),
        "published encoders": table.encoding(),
    }
    for title, names in groups.items():
        found = errors(names)
        for what, chosen in (("all on the device", True), ("layers or experts on the host", False)):
            rows = [one for own in found.values() for key, one in own.items() if (key in WHOLE) == chosen]
            lines.append(_row(f"{len(names)} of {title}, {what}", rows))
        wide += [name for name, own in found.items() if any(one.compute > 0.1 + 1e-9 for one in own.values())]
    lines += ["", f"Bounds more than 10 % above for some options: {', '.join(sorted(wide)) or 'none'}.", "", END]
    return "\n".join(lines)


def digest() -> str:
    """Name the data that the table is made of."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in DATA)).hexdigest()[:16]


def main() -> int:
    """Write the table into the page."""
    page = PAGE.read_text()
    before, rest = page.split(START, 1)
    PAGE.write_text(before + text() + rest.split(END, 1)[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
