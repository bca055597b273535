"""Arrivals, departures and failures played through the operator's own placement, queue, moves and evictions.

Pure: time is a number of the workload, and whoever wants to know how long a decision takes hands in a clock.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from paddock.api.modeldeployment import Policy
from paddock.core.fleet import Claim, Device, Fleet
from paddock.core.moves import Limits, Rearrangement, Tenant, rearrange
from paddock.core.placement import Placement, place
from paddock.core.policy import tokens_per_second
from paddock.core.request import Request

SPEED_SHARE = 500
"""Of a job's value, in thousandths: what is lost where it does not run at all as fast as it asks."""


@dataclass(frozen=True, slots=True)
class Job:
    """One replica that comes and goes. Times in seconds from the start."""

    name: str
    arrival: int
    request: Request
    departure: int | None = None
    """None: it stays."""
    value: int = 1
    """What a second of it is worth, in any unit."""

    @property
    def deployment(self) -> str:
        """Whom it is for: its name without the number of the replica."""
        return self.name.rsplit("-", 1)[0]

    def worth(self, device: Device) -> int:
        """Give thousandths of its value that a second on a device is worth: less where it is slower than asked for."""
        request = self.request
        wanted = request.min_tokens_per_second
        if not wanted:
            return 1000 * self.value
        speed = min(wanted, tokens_per_second(device, request.token_bytes) or 0)
        return self.value * (1000 - SPEED_SHARE + SPEED_SHARE * speed // wanted)


@dataclass(frozen=True, slots=True)
class Outage:
    """A GPU that is gone for a while; what is on it waits for another."""

    gpu: str
    start: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes that models have on each GPU from a moment on."""

    time: int
    used: tuple[int, ...]


@dataclass
class Result:
    """What came of it. Sizes in bytes, times in seconds."""

    jobs: int = 0
    placed: int = 0
    """That got a device at some time."""
    at_once: int = 0
    """Of them, without waiting."""
    waited: int = 0
    """Seconds that all jobs waited together, those that never got a device included."""
    interrupted: int = 0
    """Times that a job lost its device by an outage."""
    moves: int = 0
    """Times that a job was moved so that another got a device."""
    moved_bytes: int = 0
    evictions: int = 0
    """Times that a job lost its device to one of higher priority."""
    wanted_byte_seconds: int = 0
    served_byte_seconds: int = 0
    wanted_value: int = 0
    """Thousandths of the jobs' values, times seconds."""
    served_value: int = 0
    placements: dict[str, str] = field(default_factory=dict)
    """The GPU of each job that had one at the end."""
    decisions: list[float] = field(default_factory=list)
    """Seconds of each plain decision, by the clock that was handed in."""
    searches: list[float] = field(default_factory=list)
    """Seconds of each search for moves and evictions."""
    samples: list[Sample] = field(default_factory=list)


ARRIVE, LEAVE, BREAK, MEND = 2, 0, 1, 0
"""Of events at one moment, what makes room comes first."""


class _Run:
    """One pass."""

    def __init__(self, fleet: Fleet, policy: Policy | None, clock: Callable[[], float], limits: Limits | None) -> None:
        self.fleet, self.policy, self.clock, self.limits = fleet, policy, clock, limits
        self.result = Result()
        self.waiting: list[tuple[tuple[int, int, str], Job]] = []
        self.running: dict[str, tuple[Job, Device]] = {}
        self.since: dict[str, int] = {}
        self.served: set[str] = set()
        self.now = 0
        self.changes = 0
        self.failed: dict[str, int] = {}
        """By job: how many changes of the fleet there had been when it was last refused."""

    def settle(self) -> None:
        """Place all that wait and fit, in their order; those that were evicted for them have their turn, too."""
        left = []
        heapq.heapify(self.waiting)
        while self.waiting:
            order, job = heapq.heappop(self.waiting)
            if self.failed.get(job.name) == self.changes or not self._start(job):
                self.failed[job.name] = self.changes
                left.append((order, job))
        self.waiting = left
        used = tuple(device.reserved for device in self.fleet.devices)
        if self.result.samples and self.result.samples[-1].time == self.now:
            self.result.samples.pop()
        self.result.samples.append(Sample(self.now, used))

    def _start(self, job: Job) -> bool:
        request = self._asked(job)
        begin = self.clock()
        found = place(request, self.fleet)
        self.result.decisions.append(self.clock() - begin)
        if not isinstance(found, Placement):
            return self._make_room(job, request)
        if found.device is None:
            return False
        self._run(job, found)
        return True

    def _asked(self, job: Job) -> Request:
        return job.request if self.policy is None else replace(job.request, policy=self.policy)

    def _make_room(self, job: Job, request: Request) -> bool:
        """Disturb others for one that waits, as far as that is allowed."""
        if self.limits is None:
            return False
        begin = self.clock()
        tenants = [self._tenant(one, device) for one, device in self.running.values()]
        found = rearrange(request, self.fleet, tenants, self.limits, job.deployment)
        self.result.searches.append(self.clock() - begin)
        if found is None:
            return False
        self._disturb(found)
        self._run(job, found.placement)
        return True

    def _disturb(self, found: Rearrangement) -> None:
        for victim in found.evictions:
            self._suspend(victim.owner)
            self.result.evictions += 1
        for tenant, placement, _ in found.moves:
            job = self.stop(tenant.owner)
            self._run(job, placement)
            self.result.moves += 1
            self.result.moved_bytes += tenant.need

    def _tenant(self, job: Job, device: Device) -> Tenant:
        request = self._asked(job)
        return Tenant(
            owner=job.name,
            deployment=job.deployment,
            device=device.gpu,
            need=request.need_on(device),
            priority=request.priority,
            since=f"{self.since[job.name]:012}",
            movable=True,
            evictable=True,
            request=request,
        )

    def _run(self, job: Job, found: Placement) -> None:
        """Let a job run on its device from now on."""
        device = found.device
        assert device is not None  # noqa: S101 the CPU is none here
        claim = Claim(job.name, job.deployment, found.need, host_bytes=job.request.host_need)
        self.fleet = self.fleet.with_claim(device.gpu, claim)
        self.changes += 1
        self.running[job.name] = (job, device)
        waited = self.now - self.since.pop(job.name, self.now)
        self.result.waited += waited
        if job.name not in self.served:
            self.served.add(job.name)
            self.result.placed += 1
            self.result.at_once += waited == 0
        self.since[job.name] = self.now

    def _suspend(self, name: str) -> None:
        """Send a running job back to the queue."""
        job = self.stop(name)
        self.since[name] = self.now
        heapq.heappush(self.waiting, (_order(job), job))

    def arrive(self, job: Job) -> None:
        self.result.jobs += 1
        self.since[job.name] = self.now
        heapq.heappush(self.waiting, (_order(job), job))

    def stop(self, name: str) -> Job:
        """End a running job."""
        job, device = self.running.pop(name)
        self.fleet = self.fleet.without((name,))
        self.changes += 1
        lasted = self.now - self.since.pop(name)
        self.result.served_byte_seconds += job.request.need * lasted
        self.result.served_value += job.worth(device) * lasted
        return job

    def leave(self, job: Job) -> None:
        if job.name in self.running:
            self.stop(job.name)
        else:
            self.waiting = [one for one in self.waiting if one[1].name != job.name]
            self.result.waited += self.now - self.since.pop(job.name)

    def switch(self, gpu: str, *, ready: bool) -> None:
        """Take a GPU away, or give it back."""
        self.fleet = self.fleet.with_devices(
            replace(one, ready=ready, why_not="an outage") for one in self.fleet.at([gpu])
        )
        self.changes += 1
        for job, device in [] if ready else list(self.running.values()):
            if device.gpu == gpu:
                self.result.interrupted += 1
                self._suspend(job.name)


def simulate(
    fleet: Fleet,
    jobs: Sequence[Job],
    outages: Iterable[Outage] = (),
    policy: Policy | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    limits: Limits | None = None,
) -> Result:
    """Play a workload; `policy` is used by every job in place of its own. Job names are unique.

    `limits` says how much may be moved and evicted for one that waits; by default nothing.
    """
    run = _Run(fleet, policy, clock, limits)
    events: list[tuple[int, int, int, Callable[[], None]]] = []

    def at(time: int, kind: int, work: Callable[[], None]) -> None:
        heapq.heappush(events, (time, kind, len(events), work))

    for job in sorted(jobs, key=lambda one: (one.arrival, one.name)):
        at(job.arrival, ARRIVE, _call(run.arrive, job))
        if job.departure is not None:
            at(job.departure, LEAVE, _call(run.leave, job))
    for outage in outages:
        at(outage.start, BREAK, lambda gpu=outage.gpu: run.switch(gpu, ready=False))  # type: ignore[misc]
        if outage.end is not None:
            at(outage.end, MEND, lambda gpu=outage.gpu: run.switch(gpu, ready=True))  # type: ignore[misc]
    end = max((one[0] for one in events), default=0)
    while events:
        run.now = events[0][0]
        while events and events[0][0] == run.now:
            heapq.heappop(events)[-1]()
        run.settle()
    run.result.placements = {name: device.gpu for name, (_, device) in sorted(run.running.items())}
    for name in list(run.running):
        run.stop(name)
    run.result.waited += sum(end - since for since in run.since.values())
    for job in jobs:
        lasts = max(0, (end if job.departure is None else job.departure) - job.arrival)
        run.result.wanted_byte_seconds += job.request.need * lasts
        run.result.wanted_value += 1000 * job.value * lasts
    return run.result


def _order(job: Job) -> tuple[int, int, str]:
    return (-job.request.priority, job.arrival, job.name)


def _call(work: Callable[[Job], None], job: Job) -> Callable[[], None]:
    return lambda: work(job)
