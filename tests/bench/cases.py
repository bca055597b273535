"""Fleets of mixed cards, and who comes to them: models that stay, and models that come and go. Made up, by seeds."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from paddock.api.modeldeployment import Policy
from paddock.api.selector import DeviceSelector
from paddock.core.policy import tokens_per_second
from paddock.core.quantity import round_up
from paddock.core.request import Request
from paddock.core.simulate import Job
from support.builders import GIB, device, fleet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paddock.core.fleet import Device, Fleet

MOMENTS = (150, 220, 300)
"""When the fleet is looked at, in per cent of the time that a model stays on average."""


class Card(NamedTuple):
    """Some equal cards."""

    number: int
    gib: int
    gigabytes_per_second: int
    backend: str = "CUDA"


FLEETS: dict[str, tuple[Card, ...]] = {
    "homelab": (
        Card(1, 6, 192),
        Card(1, 11, 484),
        Card(1, 11, 616),
        Card(2, 12, 360),
        Card(1, 16, 288),
        Card(1, 16, 448),
        Card(1, 24, 346),
        Card(2, 24, 936),
        Card(1, 24, 1008),
        Card(1, 24, 960, "ROCm"),
        Card(1, 32, 1024, "ROCm"),
    ),
    "workstations": (
        Card(4, 12, 288),
        Card(6, 16, 448),
        Card(4, 24, 300),
        Card(6, 24, 768),
        Card(4, 24, 1008),
        Card(6, 48, 768),
        Card(2, 48, 960),
        Card(2, 96, 1792),
    ),
    "datacenter": (
        Card(12, 16, 320),
        Card(12, 24, 300),
        Card(12, 24, 600),
        Card(12, 48, 864),
        Card(4, 40, 1555),
        Card(4, 80, 2039),
        Card(4, 80, 3350),
    ),
}
"""Mixed fleets of 13, 34 and 60 cards."""
SIZES = (0.3, 0.6, 1.2, 2.3, 3.2, 4.8, 5.5, 6.5, 8.2, 9.6, 12.5, 15, 18, 20, 22, 27, 33, 38, 44, 50, 58, 66, 70)
"""GiB that models need; the small ones are more common."""
SPEEDS = (0, 0, 0, 10, 15, 20, 30, 40, 60)
"""Tokens per second that are asked for; 0: none. Nobody asks for more than the fastest card that can hold it gives."""
PRIORITIES = (0, 0, 0, 0, 0, 0, 1, 1, 1, 2)
ONLY_NVIDIA = DeviceSelector.model_validate({"vendors": ["NVIDIA"]})


@dataclass(frozen=True)
class Case:
    """A fleet and who comes, in this order."""

    fleet: Fleet
    jobs: tuple[Job, ...]

    @property
    def wanting(self) -> tuple[Job, ...]:
        """Those who want a card at the end."""
        return tuple(job for job in self.jobs if job.departure is None)

    def worth(self, placements: dict[str, str]) -> int:
        """Give what a placement of jobs is worth, in thousandths."""
        cards = {one.gpu: one for one in self.fleet.devices}
        return sum(job.worth(cards[placements[job.name]]) for job in self.wanting if job.name in placements)

    def until(self, moment: int) -> Case:
        """Give the same as it is at a moment: nobody knows who will leave later."""
        come = [job for job in self.jobs if job.arrival <= moment]
        open_ = [job.departure is None or job.departure > moment for job in come]
        jobs = tuple(replace(job, departure=None) if open_ else job for job, open_ in zip(come, open_, strict=True))
        return Case(self.fleet, jobs)


def filling(name: str, seed: int) -> list[Case]:
    """Give one case of a fleet: who comes stays, and wants the memory that there is."""
    where = fleet(*_cards(FLEETS[name]))
    chance = random.Random(f"{name} {seed}")  # noqa: S311 no secret
    room = sum(one.total or 0 for one in where.devices)
    jobs: list[Job] = []
    while sum(one.request.need for one in jobs) < room:
        jobs.append(_job(len(jobs), where, chance))
    return [Case(where, tuple(jobs))]


def changing(name: str, seed: int) -> list[Case]:
    """Give one case of a fleet, at some moments: models come and go, and want the memory that there is on average."""
    where = fleet(*_cards(FLEETS[name]))
    chance = random.Random(f"{name} {seed}")  # noqa: S311 no secret
    room = sum(one.total or 0 for one in where.devices)
    some = [_job(number, where, chance) for number in range(1000)]
    stay = room * len(some) / sum(one.request.need for one in some)
    jobs = [
        replace(one, departure=one.arrival + max(1, round(chance.expovariate(1 / stay))))
        for one in some[: round(stay * MOMENTS[-1] / 100) + 1]
    ]
    return [Case(where, tuple(jobs)).until(round(stay * percent / 100)) for percent in MOMENTS]


WAYS = {"come and go": changing, "come and stay": filling}


def _job(number: int, where: Fleet, chance: random.Random) -> Job:
    largest = max(one.total or 0 for one in where.devices)
    sizes = [one for one in SIZES if one * GIB <= largest]
    gib = chance.choices(sizes, [one**-0.5 for one in sizes])[0]
    need = round_up(int(gib * GIB * chance.uniform(0.9, 1.0)))
    priority = chance.choice(PRIORITIES)
    read = need // chance.choice((1, 1, 1, 1, 8))
    most = max(tokens_per_second(one, read) or 0 for one in where.devices if (one.total or 0) >= need)
    speed = min(chance.choice(SPEEDS), most) or None
    request = Request(
        need=need,
        policy=Policy.JUST_FAST_ENOUGH if speed else Policy.BEST_FIT,
        priority=priority,
        min_tokens_per_second=speed,
        token_bytes=read,
        selector=ONLY_NVIDIA if chance.random() < 0.1 else None,
    )
    value = round(100 * (need / GIB) ** 0.5 * 2**priority)
    return Job(f"m{number:04}-0", number, request, value=value)


def _cards(kinds: Iterable[Card]) -> list[Device]:
    out: list[Device] = []
    for kind in kinds:
        for _ in range(kind.number):
            number = len(out)
            out.append(
                device(
                    f"gpu-{number:02}",
                    node=f"node-{number // 2:02}",
                    backend=kind.backend,
                    total=kind.gib * GIB,
                    free=None,
                    bandwidth=kind.gigabytes_per_second * 10**9,
                    description="",
                )
            )
    return out
