"""The numbers that sizes of tensors in a graph are made of, and the small expressions that combine them.

Expressions are written in prefix form: `E`, `*:H:hk`, `+:E:*:2:V`, `/:T:4`; digits are themselves.
"""

from typing import Final

from paddock.api.report import GraphOutline, HeaderSummary, LayerOutline
from paddock.core.geometry import Geometry, widths

_OPERATORS: Final = frozenset("*+-/")
_ROTATED: Final = 64
CHUNKS: Final = (64, 128, 256)
"""Tokens that recurrent layers compute at once."""


def atoms(summary: HeaderSummary, geometry: Geometry, kind: LayerOutline | None) -> dict[str, int]:
    """Give every number that the size of a tensor may be made of, in a layer or outside all of them."""
    outline = summary.graph or GraphOutline()
    tokens, slots = geometry.tokens, geometry.slots
    found = {
        "T": tokens,
        "S": slots,
        "Q": tokens // slots,
        "R": tokens // geometry.streams,
        "N": geometry.streams,
        "O": geometry.outputs,
        "C": geometry.cells,
        "W": geometry.window,
        "E": summary.embedding_length,
        "V": summary.vocabulary,
        "L": summary.block_count,
        "H": kind.heads if kind else max(summary.head_count, default=0),
        "K": kind.heads_kv if kind else max(summary.head_count_kv, default=0),
    }
    found["heads"] = max(summary.head_count, default=0)  # of layers without attention, too
    found["hk"], found["hv"] = widths(summary, windowed=kind is not None and "w" in kind.traits)
    found |= {"H*hk": found["H"] * found["hk"], "H*hv": found["H"] * found["hv"]}
    found |= {"K*hk": found["K"] * found["hk"], "K*hv": found["K"] * found["hv"]}
    found["rk"] = _ROTATED
    while found["hk"] and found["hk"] % (2 * found["rk"]) == 0:
        found["rk"] *= 2
    found["gk"], found["gv"] = found["hk"] // found["rk"], found["hv"] // _ROTATED
    found |= _states(outline.numbers, found, max(summary.head_count, default=0))
    for step in CHUNKS:
        found[f"q{step}"] = -(-found["Q"] // step)
    for name, number in outline.numbers.items():
        found[name] = number
    for name, shape in (kind.shapes if kind else outline.shapes).items():
        for axis, size in enumerate(shape):
            found[f"@{name}.{axis}"] = size
    if kind is None:  # a tied embedding is the output matrix too
        found.setdefault("@output.0", found["E"])
        found.setdefault("@output.1", found["V"])
    return found


def _states(numbers: dict[str, int], found: dict[str, int], heads: int) -> dict[str, int]:
    """Give the elements of the states of recurrent layers (src/llama-hparams.cpp, n_embd_r and n_embd_s)."""
    inner, state = numbers.get("ssm.inner_size", 0), numbers.get("ssm.state_size", 0)
    kernel, head = numbers.get("ssm.conv_kernel", 0), numbers.get("kda.head_dim", 0)
    rank = numbers.get("ssm.time_step_rank", 0)
    channels = inner + 2 * numbers.get("ssm.group_count", 0) * state
    kinds = {
        "ssm.channels": channels,
        "ssm.head": inner // rank if rank else 0,
        "ssm.rows": max(kernel - 1, 0) * channels,
        "ssm.states": inner * state,
        "wkv.states": found["E"] * numbers.get("wkv.head_size", 0),
        "kda.width": head * heads,
        "kda.rows": 3 * max(kernel - 1, 0) * head * heads,
        "kda.states": head * head * heads,
        "conv.rows": found["E"] * max(numbers.get("shortconv.l_cache", 0) - 1, 0),
        "lightning.states": found["hk"] * found["hk"] * heads,
    }
    return {name: size for name, size in kinds.items() if size}


def evaluate(expression: str, numbers: dict[str, int]) -> int:
    """Compute an expression; raises KeyError when a number is not there."""
    value, _ = _evaluate(expression.split(":"), 0, numbers)
    return value


def _evaluate(words: list[str], at: int, numbers: dict[str, int]) -> tuple[int, int]:
    """Give the value of the expression that begins at a word, and where the next begins."""
    word = words[at]
    if word not in _OPERATORS:
        return (int(word) if word.isdigit() else _number(word, numbers)), at + 1
    one, after = _evaluate(words, at + 1, numbers)
    other, after = _evaluate(words, after, numbers)
    if word == "*":
        return one * other, after
    if word == "+":
        return one + other, after
    if word == "-":
        return max(one - other, 0), after
    return (one // other if other else 0), after


def _number(word: str, numbers: dict[str, int]) -> int:
    """Give a number by its name; files leave out the last axes of a tensor when they are 1."""
    value = numbers.get(word)
    if value is None and word[0] == "@" and word.rpartition(".")[0] + ".0" in numbers:
        return 1
    return numbers[word] if value is None else value
