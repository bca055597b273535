"""Arrivals, departures and failures played through the same placement and the same queue as the operator's.

Pure: time is a number of the workload, and whoever wants to know how long a decision takes hands in a clock.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from paddock.api.modeldeployment import Policy
from paddock.core.fleet import Claim, Fleet
from paddock.core.placement import Placement, place
from paddock.core.request import Request


@dataclass(frozen=True, slots=True)
class Job:
    """One replica that comes and goes. Times in seconds from the start."""

    name: str
    arrival: int
    request: Request
    departure: int | None = None
    """None: it stays."""
    priority: int = 0


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
    wanted_byte_seconds: int = 0
    served_byte_seconds: int = 0
    decisions: list[float] = field(default_factory=list)
    """Seconds of each decision, by the clock that was handed in."""
    samples: list[Sample] = field(default_factory=list)


ARRIVE, LEAVE, BREAK, MEND = 2, 0, 1, 0
"""Of events at one moment, what makes room comes first."""


class _Run:
    """One pass."""

    def __init__(self, fleet: Fleet, policy: Policy | None, clock: Callable[[], float]) -> None:
        self.fleet, self.policy, self.clock = fleet, policy, clock
        self.result = Result()
        self.waiting: list[tuple[tuple[int, int, str], Job]] = []
        self.running: dict[str, tuple[Job, str]] = {}
        self.since: dict[str, int] = {}
        self.served: set[str] = set()
        self.now = 0

    def settle(self) -> None:
        """Place all that wait and fit, in their order."""
        left = []
        for order, job in sorted(self.waiting, key=lambda one: one[0]):
            if not self._start(job):
                left.append((order, job))
        self.waiting = left
        used = tuple(device.reserved for device in self.fleet.devices)
        if self.result.samples and self.result.samples[-1].time == self.now:
            self.result.samples.pop()
        self.result.samples.append(Sample(self.now, used))

    def _start(self, job: Job) -> bool:
        request = job.request if self.policy is None else replace(job.request, policy=self.policy)
        begin = self.clock()
        found = place(request, self.fleet)
        self.result.decisions.append(self.clock() - begin)
        if not isinstance(found, Placement) or found.device is None:
            return False
        claim = Claim(job.name, job.name, found.need, host_bytes=request.host_need)
        self.fleet = self.fleet.with_claim(found.device.gpu, claim)
        self.running[job.name] = (job, found.device.gpu)
        waited = self.now - self.since.pop(job.name)
        self.result.waited += waited
        if job.name not in self.served:
            self.served.add(job.name)
            self.result.placed += 1
            self.result.at_once += waited == 0
        self.since[job.name] = self.now
        return True

    def arrive(self, job: Job) -> None:
        self.result.jobs += 1
        self.since[job.name] = self.now
        self.waiting.append(((-job.priority, job.arrival, job.name), job))

    def stop(self, name: str) -> Job | None:
        """End a running job; None when it does not run."""
        known = self.running.pop(name, None)
        if known is None:
            return None
        job, _ = known
        self.fleet = self.fleet.without((name,))
        self.result.served_byte_seconds += job.request.need * (self.now - self.since.pop(name))
        return job

    def leave(self, job: Job) -> None:
        if self.stop(job.name) is None:
            self.waiting = [one for one in self.waiting if one[1].name != job.name]
            self.result.waited += self.now - self.since.pop(job.name)

    def switch(self, gpu: str, *, ready: bool) -> None:
        """Take a GPU away, or give it back."""
        self.fleet = replace(
            self.fleet,
            devices=tuple(
                replace(one, ready=ready, why_not="an outage") if one.gpu == gpu else one for one in self.fleet.devices
            ),
        )
        for job, where in [] if ready else list(self.running.values()):
            if where == gpu and self.stop(job.name) is not None:
                self.result.interrupted += 1
                self.since[job.name] = self.now
                self.waiting.append(((-job.priority, job.arrival, job.name), job))


def simulate(
    fleet: Fleet,
    jobs: Sequence[Job],
    outages: Iterable[Outage] = (),
    policy: Policy | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Result:
    """Play a workload; `policy` is used by every job in place of its own. Job names are unique."""
    run = _Run(fleet, policy, clock)
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
    for name in list(run.running):
        run.stop(name)
    run.result.waited += sum(end - since for since in run.since.values())
    run.result.wanted_byte_seconds = sum(
        job.request.need * max(0, (end if job.departure is None else job.departure) - job.arrival) for job in jobs
    )
    return run.result


def _call(work: Callable[[Job], None], job: Job) -> Callable[[], None]:
    return lambda: work(job)
