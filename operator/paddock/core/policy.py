"""How one of several devices that fit is picked: one function for each policy.

A policy looks at all devices that fit and gives a key for each; the smallest key wins. Keys are whole numbers, so that
the answer is the same everywhere. Whoever asks adds the GPU object's name as the last word, so that no two are equal.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paddock.api.modeldeployment import Policy
from paddock.core.filters import Judged
from paddock.core.fleet import Device
from paddock.core.request import Request

Key = tuple[int, ...]
NEAR_FASTEST = 25
"""Per cent below the fastest up to which Auto calls a device fast."""
SPEED_CLASS = 5
"""Per cent of the fastest within which Fastest calls two devices equally fast."""
ATTAINED = 60
"""Per cent of a memory's peak bandwidth that llama.cpp is taken to reach when it generates for one request."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """A policy's answer for one set of devices."""

    key: Callable[[Judged], Key]
    words: str
    """What the best one is."""
    ties: str
    """What decides between those of which the words hold alike."""
    told: int = 1
    """How many parts of a key the words are about."""


Rule = Callable[[Sequence[Judged], Request], Ranking]


def tokens_per_second(device: Device, token_bytes: int) -> int | None:
    """Estimate how many tokens a device generates per second for one request; None when its speed is not known."""
    if device.bandwidth is None or token_bytes <= 0:
        return None
    return device.bandwidth * ATTAINED // (100 * token_bytes)


def _speed(one: Judged) -> int:
    return one.device.bandwidth or 0


def _total(one: Judged) -> int:
    return one.device.total or 0


def most_memory(_: Sequence[Judged], __: Request) -> Ranking:
    """Take the largest device, then the one with most room left."""
    return Ranking(lambda one: (-_total(one), -one.available), "most memory", "most room left")


def best_fit(_: Sequence[Judged], __: Request) -> Ranking:
    """Take the device where least is left, then the faster one."""
    return Ranking(lambda one: (one.available, -_speed(one)), "least room left over", "the faster one")


def fastest(fitting: Sequence[Judged], request: Request) -> Ranking:
    """Take the fastest device, in steps of 5 % of the fastest, then the tightest; those of unknown speed last.

    Where no device's speed is known, the largest.
    """
    top = max((_speed(one) for one in fitting), default=0)
    if not top:
        return most_memory(fitting, request)

    def key(one: Judged) -> Key:
        return ((top - _speed(one)) * 100 // (top * SPEED_CLASS), one.available)

    return Ranking(key, "fastest", "least room left over")


def just_fast_enough(fitting: Sequence[Judged], request: Request) -> Ranking:
    """Take the smallest device that reaches the wanted speed, then the tightest; the fastest where none reaches it.

    Where no device's speed is known, the largest.
    """
    if not any(_speed(one) for one in fitting):
        return most_memory(fitting, request)
    wanted = request.min_tokens_per_second or 0

    def reaches(one: Judged) -> bool:
        return (tokens_per_second(one.device, request.token_bytes) or 0) >= wanted

    def key(one: Judged) -> Key:
        return (0, _total(one), one.available) if reaches(one) else (1, -_speed(one), one.available)

    if any(reaches(one) for one in fitting):
        return Ranking(key, f"smallest that reaches {wanted} tokens/s", "least room left over", 2)
    return Ranking(key, f"fastest, though none is known to reach {wanted} tokens/s,", "least room left over", 2)


def spread(_: Sequence[Judged], request: Request) -> Ranking:
    """Take the device that keeps the largest share of its memory, then the one with fewest servers, then in turn."""

    def key(one: Judged) -> Key:
        share = 1000 * (one.available - one.need) // max(1, _total(one))
        return (-share, len(one.device.claims), _turn(request.seed, one.device.gpu))

    return Ranking(key, "largest share of memory left", "fewest servers, then in turn")


def auto(fitting: Sequence[Judged], request: Request) -> Ranking:
    """Take the smallest of the fast ones, then the tightest; by wanted speed if one is given.

    Where no device's speed is known, the largest. Where only some are known, those of unknown speed come last.
    """
    top = max((_speed(one) for one in fitting), default=0)
    if not top:
        return most_memory(fitting, request)
    if request.min_tokens_per_second is not None:
        return just_fast_enough(fitting, request)
    fast = [one for one in fitting if _is_fast(one, top)]

    def key(one: Judged) -> Key:
        return (0, _total(one), one.available) if _is_fast(one, top) else (1, -_speed(one), -_total(one))

    words = "fastest" if len(fast) == 1 else f"smallest of the {len(fast)} fastest"
    return Ranking(key, words, "least room left over", 2)


def _is_fast(one: Judged, top: int) -> bool:
    return _speed(one) * 100 >= top * (100 - NEAR_FASTEST)


def _turn(seed: str, gpu: str) -> int:
    """Give a number that puts devices in another order for each replica, and always in the same one for it."""
    return int.from_bytes(hashlib.sha256(f"{seed} {gpu}".encode()).digest()[:8], "big")


POLICIES: Mapping[Policy, Rule] = {
    Policy.AUTO: auto,
    Policy.MOST_MEMORY: most_memory,
    Policy.BEST_FIT: best_fit,
    Policy.FASTEST: fastest,
    Policy.JUST_FAST_ENOUGH: just_fast_enough,
    Policy.SPREAD: spread,
}
