"""How one of several devices that fit is picked: one function for each policy.

A policy knows how fast the devices are that fit, and gives a key for each; the smallest key wins. Keys are whole
numbers, so that the answer is the same everywhere. Whoever asks adds the GPU object's name as the last word, so that no
two are equal.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from zlib import crc32

from paddock.api.modeldeployment import Policy
from paddock.core.fleet import Device
from paddock.core.request import Request
from paddock.core.view import Member, Members, roomiest, tightest

Leading = Callable[[Sequence[Members]], Sequence[Member]]

Key = tuple[int, ...]
Speeds = Mapping[int, int]
"""How many devices fit, by their bandwidth in bytes per second, which is 0 where it is not known."""
NEAR_FASTEST = 25
"""Per cent below the fastest up to which Auto calls a device fast."""
SPEED_CLASS = 5
"""Per cent of the fastest within which Fastest calls two devices equally fast."""
ATTAINED = 60
"""Per cent of a memory's peak bandwidth that llama.cpp is taken to reach when it generates for one request."""


def _of_each(leading: Callable[[Members], Sequence[Member]]) -> Leading:
    """Give those that lead their class."""
    return lambda classes: [one for members in classes for one in leading(members)]


TIGHTEST, ROOMIEST = _of_each(tightest), _of_each(roomiest)


@dataclass(frozen=True, slots=True)
class Ranking:
    """A policy's answer for one set of devices."""

    key: Callable[[Member], Key]
    words: str
    """What the best one is."""
    ties: str
    """What decides between those of which the words hold alike."""
    told: int = 1
    """How many parts of a key the words are about."""
    leading: Leading = TIGHTEST
    """Gives some devices of these classes (alike but for what is left and who is there) among which the two with the
    least keys are. Follows from the key; it spares asking for the keys of all."""


Rule = Callable[[Speeds, Request], Ranking]


def tokens_per_second(device: Device, token_bytes: int) -> int | None:
    """Estimate how many tokens a device generates per second for one request; None when its speed is not known."""
    if device.bandwidth is None or token_bytes <= 0:
        return None
    return _tokens(device.bandwidth, token_bytes)


def _tokens(bandwidth: int, token_bytes: int) -> int:
    return bandwidth * ATTAINED // (100 * token_bytes) if token_bytes > 0 else 0


def _speed(one: Member) -> int:
    return one.device.bandwidth or 0


def _total(one: Member) -> int:
    return one.device.total or 0


def _servers(one: Member) -> int:
    return len(one.device.claims)


def most_memory(_: Speeds, __: Request) -> Ranking:
    """Take the largest device, then the one with most room left."""
    return Ranking(lambda one: (-_total(one), -one.available), "most memory", "most room left", leading=ROOMIEST)


def best_fit(_: Speeds, __: Request) -> Ranking:
    """Take the device where least is left, then the faster one."""
    return Ranking(lambda one: (one.available, -_speed(one)), "least room left over", "the faster one")


def fastest(speeds: Speeds, request: Request) -> Ranking:
    """Take the fastest device, in steps of 5 % of the fastest, then the tightest; those of unknown speed last.

    Where no device's speed is known, the largest.
    """
    top = max(speeds, default=0)
    if not top:
        return most_memory(speeds, request)

    def key(one: Member) -> Key:
        return ((top - _speed(one)) * 100 // (top * SPEED_CLASS), one.available)

    return Ranking(key, "fastest", "least room left over")


def just_fast_enough(speeds: Speeds, request: Request) -> Ranking:
    """Take the smallest device that reaches the wanted speed, then the tightest; the fastest where none reaches it.

    Where no device's speed is known, the largest.
    """
    if not any(speeds):
        return most_memory(speeds, request)
    wanted = request.min_tokens_per_second or 0

    def reaches(bandwidth: int) -> bool:
        return _tokens(bandwidth, request.token_bytes) >= wanted

    def key(one: Member) -> Key:
        if reaches(_speed(one)):
            return (0, _total(one), one.available)
        return (1, -_speed(one), one.available)

    if any(reaches(speed) for speed in speeds):
        return Ranking(key, f"smallest that reaches {wanted} tokens/s", "least room left over", 2)
    return Ranking(key, f"fastest, though none is known to reach {wanted} tokens/s,", "least room left over", 2)


def spread(_: Speeds, request: Request) -> Ranking:
    """Take the device that keeps the largest share of its memory, then the one with fewest servers, then in turn."""
    seed = crc32(request.seed.encode())

    def share(one: Member) -> int:
        return 1000 * (one.available - request.need_on(one.device)) // max(1, _total(one))

    def key(one: Member) -> Key:
        return (-share(one), _servers(one), turn(seed, one.gpu))

    def leading(classes: Sequence[Members]) -> Sequence[Member]:
        # Shares grow with what is left: the two largest of a class are at its end, and who has the second largest of
        # all stands side by side in each.
        shares = [share(one) for members in classes for one in members[-2:]]
        second = min(nlargest(2, shares))
        most = [
            one
            for members in classes
            if share(members[-1]) >= second
            for one in members[bisect_left(members, second, key=share) :]
        ]
        top = [one for one in most if share(one) > second] if max(shares) > second else []
        alike = [(_servers(one), one.gpu, one) for one in most if not top or one is not top[0]]
        fewest = nsmallest(2, [servers for servers, *_ in alike])
        some = [each for each in alike if each[0] <= fewest[-1]]
        ranked = nsmallest(2, [(servers, turn(seed, gpu), gpu, one) for servers, gpu, one in some])
        return (*top, *(one for *_, one in ranked))

    return Ranking(key, "largest share of memory left", "fewest servers, then in turn", leading=leading)


def auto(speeds: Speeds, request: Request) -> Ranking:
    """Take the smallest of the fast ones, then the tightest; by wanted speed if one is given.

    Where no device's speed is known, the largest. Where only some are known, those of unknown speed come last.
    """
    top = max(speeds, default=0)
    if not top:
        return most_memory(speeds, request)
    if request.min_tokens_per_second is not None:
        return just_fast_enough(speeds, request)
    least = top * (100 - NEAR_FASTEST)
    fast = sum(count for speed, count in speeds.items() if speed * 100 >= least)

    def key(one: Member) -> Key:
        speed = _speed(one)
        return (0, _total(one), one.available) if speed * 100 >= least else (1, -speed, -_total(one))

    words = "fastest" if fast == 1 else f"smallest of the {fast} fastest"
    return Ranking(key, words, "least room left over", 2)


def turn(seed: int, gpu: str) -> int:
    """Give a number that puts devices in another order for each seed, and always in the same one for it."""
    # Fibonacci hashing: the odd factor carries every difference into the upper bits.
    return crc32(gpu.encode(), seed) * 0x9E3779B1 & 0xFFFFFFFF


POLICIES: Mapping[Policy, Rule] = {
    Policy.AUTO: auto,
    Policy.MOST_MEMORY: most_memory,
    Policy.BEST_FIT: best_fit,
    Policy.FASTEST: fastest,
    Policy.JUST_FAST_ENOUGH: just_fast_enough,
    Policy.SPREAD: spread,
}
