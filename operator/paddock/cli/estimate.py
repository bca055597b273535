"""Shows the answer of `paddock estimate`: what takes how much, and what would fit."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from rich.text import Text

from paddock.cli.estimating import Answer, Asked, answer, to_dict
from paddock.cli.model import read_model
from paddock.cli.output import Output
from paddock.cli.screen import Screen
from paddock.cli.table import Cell, Column, Row, render
from paddock.cli.words import clean, plural
from paddock.core.counsel import USER_TYPES, Advice
from paddock.core.estimate import BUILD, Addend, Kind, MemoryEstimate, Place
from paddock.core.measured import Difference, expected
from paddock.core.quantity import human
from paddock.core.quantize import quantization

BAR_MOST: Final = 72
"""Characters of the longest bar."""
INDENT: Final = "  "
LABEL: Final = 10

SOURCES: Final = {"exact": "exact", "formula": "exact", "bound": "at most", "learned": "planned"}
"""How a number is known, in the table."""


class _Look(NamedTuple):
    kind: Kind
    name: str
    glyph: str
    style: str
    plain: tuple[str, ...] = ()
    """Names of addends that say nothing more."""


LOOKS: Final = (
    _Look("weights", "weights", "█", "blue", ("weights",)),
    _Look("kvCache", "KV cache", "▓", "cyan", ("keys and values", "keys, values and state")),
    _Look("compute", "compute", "▒", "magenta", ("compute buffer",)),
    _Look("overhead", "overhead", "░", "yellow"),
)
FREE: Final = "·"
PLACES: Final[tuple[tuple[Place, str], ...]] = (("device", "On the device"), ("host", "In host memory"))
LISTED: Final = ("context", "users", "cacheType", "experts", "layers", "quantization")
"""Advice that is a sentence of its own, by the order of telling."""


def estimated(screen: Screen, given: str, asked: Asked, output: Output) -> None:
    """Read a model's header and print what it needs; raises Problem."""
    found = answer(read_model(given), asked)
    if output in (Output.JSON, Output.YAML):
        screen.data(to_dict(found), output)
    else:
        show(screen, found)


def show(screen: Screen, found: Answer) -> None:
    """Print an answer for people."""
    _head(screen, found)
    for place, title, number in _places(found.need):
        screen.line()
        _place(screen, found, (place, number), title)
    screen.line()
    _trust(screen, found)
    advice = found.advice
    if found.asked.wish.budget is not None:
        screen.line()
        _budget(screen, found, found.asked.wish.budget)
    _users(screen, [one for one in advice if one.kind == "table"])
    _cards(screen, found, [one for one in advice if one.kind == "card"])
    label = "Speed"
    for one in advice:
        if one.kind == "speed":
            if label:
                screen.line()
            _labelled(screen, label, clean(one.message))
            label = ""


def _places(need: MemoryEstimate) -> Iterator[tuple[Place, str, int]]:
    """Give each place that something is in: device, or devices one by one, and host."""
    count = len(need.devices)
    for place, title in PLACES:
        for number in range(count if place == "device" else 1):
            if any(one.place == place and one.device == number for one in need.addends):
                yield place, f"{title} {number}" if place == "device" and count > 1 else title, number


def _head(screen: Screen, found: Answer) -> None:
    summary, options, geometry = found.model.summary, found.asked.options, found.geometry
    name = clean(summary.name or found.model.given.rpartition("/")[2])
    parts = [clean(summary.architecture), quantization(found.model.parts, summary.file_type)]
    parts += [_count(summary.parameters), f"{plural(summary.block_count, 'layer')}", human(summary.file_bytes)]
    if summary.files > 1:
        parts[-1] += f" in {summary.files} files"
    screen.line(Text.assemble((name, "bold"), f" ({', '.join(parts)})"))
    tokens = f"{geometry.context} tokens"
    if options.parallel > 1:
        share = "shared by" if options.kv_unified else f"{geometry.cells} for each of"
        tokens += f", {share} {options.parallel} slots"
    if summary.context_train and geometry.context > summary.context_train * max(1, options.parallel):
        tokens += f"; it was trained for {summary.context_train}"
    _labelled(screen, "Context", tokens)
    layers = "all layers" if options.gpu_layers is None else plural(options.gpu_layers, "layer")
    how = f"cache {options.cache_type_k}/{options.cache_type_v}, batch {options.batch}/{options.ubatch}"
    how += f", FlashAttention {options.flash_attention}, {layers} on a {options.backend} device"
    if len(options.shares) > 1:
        how += f", {options.split_mode}s over {len(options.shares)} devices by {_numbers(options.shares)}"
    if options.cpu_moe:
        kept = "all" if options.cpu_moe >= summary.block_count else str(options.cpu_moe)
        how += f", experts of {kept} layer{'' if kept == '1' else 's'} on the host"
    how += "".join(f", {pattern} on {where}" for pattern, where in options.overrides)
    _labelled(screen, "Options", how + (", embeddings" if options.embeddings else ""))


def _place(screen: Screen, found: Answer, where: tuple[Place, int], title: str) -> None:
    place, number = where
    total = found.need.devices[number] if place == "device" else found.need.host_total
    need = MemoryEstimate(tuple(one for one in found.need.addends if one.device == number), found.need.confidence)
    budget = found.asked.wish.budget if place == "device" else None
    text = f"{title}: {human(total, up=True)}"
    screen.line(Text(text + (f" of {human(budget)}" if budget else ""), style="bold"))
    if screen.terminal:
        _bar(screen, need, place, max(total, budget or 0))
    rows = [row for look in LOOKS for row in _rows(screen, need, place, look, total)]
    columns = [Column("", least=1), Column("", right=True), Column("", right=True), Column("", least=12, wrap=True)]
    for line in _untitled(screen, columns, rows):
        screen.line(line, INDENT)


def _rows(screen: Screen, need: MemoryEstimate, place: Place, look: _Look, total: int) -> Iterator[Row]:
    """Give one row for a kind, with what it is made of in words."""
    addends = [one for one in need.addends if one.place == place and one.kind == look.kind]
    size = sum(one.bytes for one in addends)
    if not size:
        return
    name = f"{look.glyph} {look.name}" if screen.terminal else look.name
    share = f"{100 * size / total:.0f} %" if size * 100 >= total else "<1 %"
    yield [Cell(name, look.style), human(size, up=True), share, Cell(_made_of(look, addends), "dim")]


def _made_of(look: _Look, addends: list[Addend]) -> str:
    """Say what a sum is made of and how each part is known."""
    if len(addends) == 1:
        name = "" if addends[0].name in look.plain else addends[0].name
        return ", ".join(word for word in (name, SOURCES[addends[0].source]) if word)
    largest_first = sorted(addends, key=lambda addend: -addend.bytes)
    return "; ".join(f"{one.name} {human(one.bytes, up=True)}, {SOURCES[one.source]}" for one in largest_first)


def _untitled(screen: Screen, columns: list[Column], rows: list[Row]) -> Iterator[Text]:
    width = None if screen.width is None else screen.width - len(INDENT)
    yield from render(columns, rows, width)[1:]


def _bar(screen: Screen, need: MemoryEstimate, place: Place, whole: int) -> None:
    """Draw one bar of all kinds; where there is a budget, its end is the budget's."""
    width = min(BAR_MOST, max(8, screen.console.width - 2 * len(INDENT)))
    text = Text(INDENT)
    used = done = 0
    for look in LOOKS:
        size = need.sum(place, look.kind)
        done += size
        end = min(width, round(width * done / whole)) if whole else 0
        if size and end == used and used < width:
            end += 1
        text.append(look.glyph * (end - used), style=look.style)
        used = max(used, end)
    text.append(FREE * (width - used), style="dim")
    screen.line(text)


def _trust(screen: Screen, found: Answer) -> None:
    """Say how the numbers are known, and tell every difference between formula and measurement."""
    measurement = found.measurement
    if measurement is None:
        _labelled(screen, "Known", f"computed from the header, as llama.cpp b{BUILD} allocates")
        if found.not_measured:
            _labelled(screen, "", f"not measured: {clean(found.not_measured)}")
        return
    what = "counted by llama.cpp itself" + ("" if found.asked.options.backend == "generic" else " on a plain device")
    _labelled(screen, "Known", f"{what}, in {measurement.seconds:.2f} s, from the header alone")
    for one in found.differences:
        _labelled(screen, "", _difference(found, one))
    if not found.differences:
        _labelled(screen, "", "the formula says the same, to the byte")


def _difference(found: Answer, one: Difference) -> str:
    """Say what the formula says where that is not what was measured: as it announced, or a defect."""
    more = f"{(one.formula - one.measured) / one.measured * 100:+.1f} %" if one.measured else "from nothing"
    what = {look.kind: look.name for look in LOOKS}[
        one.kind
    ] + f" {'on the device' if one.place == 'device' else 'in host memory'}"
    if expected(found.formula, one):
        return f"the formula alone says {human(one.formula, up=True)} for {what} ({more})"
    return f"the formula is wrong here, please report it: {one.formula} bytes for {what}, not {one.measured} ({more})"


def _budget(screen: Screen, found: Answer, budget: int) -> None:
    """Say whether it fits, and what else would."""
    fit = next(one for one in found.advice if one.kind == "fit")
    good = bool(fit.facts["fits"])
    screen.line(Text.assemble((f"With {human(budget)}: ", "bold"), (fit.message, "bold green" if good else "bold red")))
    for kind in LISTED:
        for one in found.advice:
            if one.kind == kind:
                screen.line(Text.assemble(clean(one.message), (_flags(one), "dim")), INDENT)
    if found.asked.options.backend == "generic":
        screen.line(
            Text("the driver's own share is not counted; --backend cuda and others plan it", style="dim"), INDENT
        )


def _flags(one: Advice) -> str:
    options = one.facts.get("options")
    if not isinstance(options, dict) or not options:
        return ""
    return f"  [{' '.join(f'{flag} {value}' for flag, value in options.items())}]"


def _users(screen: Screen, rows: list[Advice]) -> None:
    rows = [one for one in rows if any(_counts(one).values())]
    if not rows:
        return
    screen.line()
    screen.line(Text("Users that fit, each with a slot for themselves", style="bold"))
    types = [kind for kind in USER_TYPES if kind in _counts(rows[0])]
    columns = [Column("TOKENS EACH", right=True), *(Column(f"CACHE {kind}", right=True) for kind in types)]
    table: list[Row] = []
    for one in rows:
        counts = _counts(one)
        cells = [Cell(str(counts[kind]), "" if counts[kind] else "dim") for kind in types]
        table.append([str(one.facts["contextLength"]), *cells])
    screen.table(columns, table)


def _counts(one: Advice) -> dict[str, int]:
    users = one.facts["users"]
    return users if isinstance(users, dict) else {}


def _cards(screen: Screen, found: Answer, cards: list[Advice]) -> None:
    """Say what fits on cards as they are sold."""
    if not cards:
        return
    screen.line()
    screen.line(Text("What would fit, planned with 90 % of a card's memory less 3 GiB", style="bold"))
    options = found.asked.options
    request = found.geometry.context if options.kv_unified else found.geometry.cells
    columns = [
        Column("CARD", right=True),
        Column("LARGEST CONTEXT", right=True),
        Column(f"USERS WITH {request}", right=True),
    ]
    rows: list[Row] = []
    for one in cards:
        memory, context, users = (int(str(one.facts[name])) for name in ("memory", "contextLength", "users"))
        fit = Cell(str(context), "green") if context else Cell("does not fit", "dim")
        rows.append([human(memory), fit, Cell(str(users) if users else "", "dim" if not users else "")])
    screen.table(columns, rows)


def _numbers(shares: tuple[float, ...]) -> str:
    return ",".join(f"{share:g}" for share in shares)


def _labelled(screen: Screen, label: str, text: str) -> None:
    screen.line(text, Text(f"{label:<{LABEL}}", style="dim"))


def _count(parameters: int) -> str:
    """Say a number of parameters as people do: 270 M, 8.03 B."""
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if parameters >= size:
            return f"{parameters / size:.3g} {letter} parameters"
    return plural(parameters, "parameter")
