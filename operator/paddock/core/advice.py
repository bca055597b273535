"""What would fit: computed from the estimate by search, never from a table of advice.

All searches rest on one fact that tests hold the estimate to: more context, more slots, more layers on the device and a
wider cache type never need less device memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from paddock.core.estimate import MemoryEstimate, Options
from paddock.core.geometry import CONTEXT_STEP
from paddock.core.quantity import round_up

Need = Callable[[Options], MemoryEstimate]
"""Estimates one model with the options given."""

CACHE_TYPES: Final = ("f16", "q8_0", "q4_0")
"""Cache types by falling precision and size: those that FlashAttention has kernels of its own for in the usual builds
(ggml/CMakeLists.txt:208)."""
MOST_SLOTS: Final = 256
"""LLAMA_MAX_SEQ (src/llama-cparams.h)."""

_GIB: Final = 1024**3


def planning_budget(memory: int) -> int:
    """Give what the cautious planning rule leaves of a card: 90 % of its memory, less 3 GiB."""
    return max(memory * 9 // 10 - 3 * _GIB, 0)


def fits(need: Need, options: Options, budget: int) -> bool:
    """Tell whether what is on the device, or on each of several, is within the budget, in bytes."""
    return max(need(options).devices) <= budget


def per_request(options: Options) -> int:
    """Give the tokens that one request may use: all of a unified cache, else a slot's share."""
    return options.context if options.kv_unified else options.context // options.parallel


def with_request(options: Options, tokens: int) -> Options:
    """Give the options with which each request may use so many tokens, rounded up as llama.cpp does."""
    rounded = round_up(tokens, CONTEXT_STEP)
    return replace(options, context=rounded if options.kv_unified else rounded * options.parallel)


def largest_context(need: Need, options: Options, budget: int, most: int) -> int | None:
    """Give the most tokens per request, up to `most`, with which the model fits; None when none do."""
    steps = max(most // CONTEXT_STEP, 1)
    found = _largest(steps, lambda step: fits(need, with_request(options, step * CONTEXT_STEP), budget))
    return found * CONTEXT_STEP if found else None


def most_slots(need: Need, options: Options, budget: int, tokens: int, limit: int = MOST_SLOTS) -> int:
    """Give how many users, each with a slot of so many tokens of its own, fit on the device; 0 when none does."""

    def enough(slots: int) -> bool:
        return fits(need, with_request(replace(options, parallel=slots, kv_unified=False), tokens), budget)

    return _largest(limit, enough)


def widest_cache(need: Need, options: Options, budget: int) -> Options | None:
    """Give the options with the most precise cache type that fits; None when not even the smallest does.

    Without FlashAttention only the keys can be of a type with blocks.
    """
    for kind in CACHE_TYPES:
        value = kind if options.flash_attention != "off" else options.cache_type_v
        tried = replace(options, cache_type_k=kind, cache_type_v=value)
        if fits(need, tried, budget):
            return tried
    return None


def most_layers(need: Need, options: Options, budget: int, layers: int) -> int:
    """Give how many of `layers` layers and the output, counted as one more, fit on the device."""
    return _largest(layers + 1, lambda count: fits(need, replace(options, gpu_layers=count), budget))


def fewest_experts_on_host(need: Need, options: Options, budget: int, layers: int) -> int | None:
    """Give the least --n-cpu-moe with which the rest fits; None when even all experts on the host are too few."""
    left = _largest(layers, lambda kept: fits(need, replace(options, cpu_moe=layers - kept), budget), least=-1)
    return None if left < 0 else layers - left


def _largest(most: int, enough: Callable[[int], bool], *, least: int = 0) -> int:
    """Give the largest number up to `most` for which `enough` holds, by bisection; `least` when for none above it."""
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        if enough(middle):
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class Users:
    """How many users fit, by cache type, in the order of the types asked for."""

    tokens: int
    """Context of each, in tokens."""
    count: tuple[int, ...]


def users_table(
    need: Need, options: Options, budget: int, contexts: Sequence[int], types: Sequence[str] = ("f16", "q8_0", "q4_0")
) -> Iterator[Users]:
    """Give the users per card for each context, in rising order."""
    counts = [MOST_SLOTS] * len(types)
    for tokens in contexts:
        for number, kind in enumerate(types):
            tried = replace(options, cache_type_k=kind, cache_type_v=kind)
            counts[number] = most_slots(need, tried, budget, tokens, counts[number])  # never more than with less
        yield Users(tokens, tuple(counts))
