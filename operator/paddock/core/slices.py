"""What of each tensor is on which device when tensors themselves are divided (-sm tensor).

As llama_meta_device_get_split_state does it in build 11434 (src/llama-model.cpp:379-880): along which dimension by the
tensor's name, in whole heads or whole blocks, in its floats of 32 bits; what is not named there is on every device.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final, NamedTuple

from paddock.api.report import HeaderSummary
from paddock.core.floats import single
from paddock.core.geometry import per_layer, widths
from paddock.core.ggml import type_numbered
from paddock.core.summary import Loaded

_STEP: Final = 128
"""Elements that slices are multiples of where that is no hindrance."""
_GATED: Final = frozenset({"qwen3next", "qwen35", "qwen35moe", "clef", "qwen4exp"})
"""Queries hold a gate too, and states are grouped."""
_WHOLE: Final = frozenset({"hrm_text", "deepseek4", "dflash"})
"""On every device as a whole, or planned so."""
_ATTENTION: Final = ("attn_output.weight", "ssm_out.weight")
_FORWARD: Final = ("ffn_down.weight", "ffn_down_exps.weight")
_STATE: Final = ("ssm_out.weight",)
_OWN: Final[tuple[str, ...]] = ()
_RULES: Final = tuple(
    (re.compile(pattern), axis, like)
    for pattern, axis, like in (
        (r"attn_(q|k|v|qkv|gate)\.weight", 1, _ATTENTION),
        (r"attn_(q|k|v|qkv)\.bias", 0, _ATTENTION),
        (r"attn_(q|k)_norm\.weight", 1, _ATTENTION[:1]),
        (r"cache_(k|v)|attn_sinks\.weight", 0, _ATTENTION[:1]),
        (r"attn_output\.weight", 0, _OWN),
        (r"ssm_dt\.bias|ssm_a|cache_(r|s)", 0, _STATE),
        (r"ssm_(alpha|beta|ba|conv1d)\.weight", 1, _STATE),
        (r"ssm_out\.weight", 0, _OWN),
        (r"ffn_(up|gate)(_exps)?\.weight|ffn_gate_up(_exps)?\.weight", 1, _FORWARD),
        (r"ffn_(up|gate)(_exps)?\.bias", 0, _FORWARD),
        (r"ffn_down(_exps)?\.weight", 0, _FORWARD),
        (r"output\.weight", 1, _OWN),
        (r"output\.bias", 0, _OWN),
    )
)
_WIDE: Final = re.compile(r"ffn_(up|gate|gate_up|down)(_exps)?\.(weight|bias)")


class Segment(NamedTuple):
    """A part of a dimension that is divided for itself: so many elements, so many times, in steps."""

    elements: int
    times: int
    step: int


@dataclass(frozen=True, slots=True)
class Layer:
    """What decides of one layer."""

    recurrent: bool
    windowed: bool
    heads: int
    heads_kv: int
    key: int
    value: int
    forward: int

    @property
    def group(self) -> int:
        """Queries that share a key."""
        return self.heads // self.heads_kv if self.heads_kv else 0


class Slices:
    """Slices of one model's tensors over devices with shares."""

    def __init__(self, summary: HeaderSummary, tensors: Sequence[Loaded], shares: Sequence[float]) -> None:
        self._summary, self._shares = summary, shares
        self._blocks = {one.name: _block(one.type) for one in tensors}
        self._numbers = {} if summary.graph is None else summary.graph.numbers

    def known(self) -> bool:
        """Tell whether the summary holds all that decides."""
        return self._summary.graph is not None and self._summary.architecture not in _WHOLE

    def states(self) -> tuple[int, int] | None:
        """Give the elements of a layer's and slot's two states, where they are divided."""
        names = ("ssm.state_size", "ssm.group_count", "ssm.inner_size", "ssm.conv_kernel")
        state, groups, inner, kernel = (self._numbers.get(name, 0) for name in names)
        if self._summary.architecture not in _GATED or not kernel:
            return None
        return (kernel - 1) * (inner + 2 * groups * state), state * inner

    @cached_property
    def layers(self) -> list[Layer]:
        """What decides of each layer that is computed."""
        summary, graph = self._summary, self._summary.graph
        if graph is None:
            return []
        count = len(graph.layers)
        lists = (summary.recurrent_layers, summary.sliding_layers)
        states, windows = (per_layer([int(one) for one in own], count) for own in lists)
        forward = per_layer(summary.feed_forward, count)
        found = []
        for number, kind in enumerate(graph.kinds[own] for own in graph.layers):
            recurrent, windowed = bool(states[number]), bool(windows[number])
            key, value = widths(summary, windowed=windowed)
            found.append(Layer(recurrent, windowed, kind.heads, kind.heads_kv, key, value, forward[number]))
        return found

    def of(self, name: str, shape: tuple[int, ...], layer: int) -> list[tuple[int, ...]]:
        """Give the shape of a tensor's slice on each device; name is that in the file, or of a cache without number."""
        own = name.removeprefix(f"blk.{layer}.")
        rule = next(((axis, like) for pattern, axis, like in _RULES if pattern.fullmatch(own)), None)
        everywhere = [shape] * len(self._shares)
        if rule is None or not self.known() or len(shape) <= rule[0]:
            return everywhere
        axis, like = rule
        if own.startswith("attn_") and own.endswith("_norm.weight") and shape[1] == 1:
            return everywhere
        inside = own != name or own.startswith("cache_")
        index = layer if inside else 0
        if not 0 <= index < len(self.layers):
            return everywhere
        if own in {"cache_r", "cache_s"} and self._summary.architecture in {"lfm2", "lfm2moe"}:
            return everywhere
        prefix = f"blk.{layer}." if inside else ""
        block = next((self._blocks[prefix + one] for one in like or (own,) if prefix + one in self._blocks), None)
        if block is None:
            return everywhere
        segments = self._segments(own, shape[axis], self.layers[index], block)
        parts = self._sizes(segments, self._turn(index, inside=inside))
        return [(*shape[:axis], size, *shape[axis + 1 :]) for size in parts]

    def elements(self, name: str, size: int, layer: int) -> list[int]:
        """Give the elements of a row on each device."""
        return [shape[0] for shape in self.of(name, (size,), layer)]

    def _turn(self, index: int, *, inside: bool) -> int:
        """Give by how many devices the rounding is shifted: by the layers of the same kind before."""
        if not inside:
            return len(self.layers) % len(self._shares)
        own = self.layers[index]
        alike = [one.recurrent == own.recurrent and one.windowed == own.windowed for one in self.layers[:index]]
        return sum(alike) % len(self._shares)

    def _sizes(self, segments: list[Segment], turn: int) -> list[int]:
        """Divide the segments; what rounding leaves is the last device's."""
        count = len(self._shares)
        turned = [single(self._shares[(place + turn) % count]) for place in range(count)]
        sums = list(accumulate(turned, lambda one, other: single(one + other)))
        sizes = [0] * count
        for elements, times, step in segments:
            low = 0
            for place in range(count):
                high = int(single(single(single(elements) * sums[place]) / sums[-1]))
                high = elements if place == count - 1 else high - high % step
                sizes[(place + turn) % count] += (high - low) * times
                low = high
        return sizes

    def _segments(self, own: str, size: int, layer: Layer, block: int) -> list[Segment]:
        if _WIDE.fullmatch(own):
            return self._forward(own, size, layer, block)
        if own.startswith("output."):
            return [Segment(size, 1, 1)]
        if layer.recurrent:
            return self._state(own, size, block)
        return self._attention(own, size, layer, block)

    def _forward(self, own: str, size: int, layer: Layer, block: int) -> list[Segment]:
        step = math.lcm(block, _STEP)
        fused = own.startswith("ffn_up") and size == 2 * layer.forward and self._summary.architecture not in _GATED
        if fused or own.startswith("ffn_gate_up"):
            return [Segment(size // 2, 2, step)]
        return [Segment(size, 1, step)]

    def _attention(self, own: str, size: int, layer: Layer, block: int) -> list[Segment]:
        group = max(layer.group, 1)
        step = block
        while step < _STEP and step * len(self._shares) < group * layer.key:
            step *= 2
        queries = math.lcm(group * layer.key, step)
        keys, head = queries // group, queries // max(layer.key, 1)
        values = keys // max(layer.key, 1) * layer.value
        gated = math.lcm(2 * group * layer.key, step) if self._summary.architecture in _GATED else queries
        if own.startswith("attn_qkv"):
            wide = layer.heads * layer.key * (2 if self._summary.architecture in _GATED else 1)
            rest = ((layer.heads_kv * layer.key, keys), (layer.heads_kv * layer.value, values))
            if rest[0][0] == rest[1][0]:
                return [Segment(wide, 1, gated), Segment(rest[0][0], 2, keys)]
            return [Segment(wide, 1, gated), *(Segment(one, 1, own_step) for one, own_step in rest)]
        steps = {
            "attn_q": gated,
            "attn_k": keys,
            "cache_k": keys,
            "attn_v": values,
            "cache_v": values,
            "attn_sinks": head,
            "attn_output": head * layer.value,
            "attn_gate": head if size == layer.heads else queries,
        }
        return [Segment(size, 1, max(steps.get(own.partition(".")[0], 1), 1))]

    def _state(self, own: str, size: int, block: int) -> list[Segment]:
        """Give the segments of layers with state, as the one kind of them that can be divided has it."""
        width, groups = self._numbers.get("ssm.state_size", 0), self._numbers.get("ssm.group_count", 0)
        heads, kernel = self._numbers.get("ssm.time_step_rank", 0), self._numbers.get("ssm.conv_kernel", 1)
        if not (width and groups and heads):
            return [Segment(size, 1, 1)]
        wide = math.lcm(math.lcm(block, _STEP), width)
        first = own.partition(".")[0]
        steps = {
            **dict.fromkeys(("attn_qkv", "attn_gate", "ssm_conv1d", "ssm_out"), wide),
            **dict.fromkeys(("ssm_dt", "ssm_a", "ssm_alpha", "ssm_beta"), wide // width),
            "ssm_ba": 2 * (wide // width),
            "cache_r": wide * (kernel - 1),
            "cache_s": wide * width,
        }
        step, keys, times = steps.get(first, 1), width * groups, heads // groups
        if self._summary.architecture == "qwen3next":
            scale = kernel - 1 if first == "cache_r" else 1
            if first in {"attn_qkv", "ssm_conv1d", "cache_r"}:
                return [Segment(keys * scale, 2, step), Segment(width * heads * scale, 1, step)]
            return [Segment(size, 1, step)]
        by_group = {
            **dict.fromkeys(("attn_qkv", "ssm_conv1d"), (keys, 2 + times)),
            **dict.fromkeys(("attn_gate", "ssm_out"), (keys, times)),
            **dict.fromkeys(("ssm_dt", "ssm_a", "ssm_alpha", "ssm_beta"), (groups, times)),
            "cache_r": (keys * (kernel - 1), 2 + times),
            "cache_s": (groups * width * width, times),
        }
        if self._summary.architecture in _GATED and first in by_group:
            return [Segment(*by_group[first], step)]
        return [Segment(size, 1, step)]


def _block(number: int) -> int:
    element = type_numbered(number)
    return 1 if element is None else element.block
