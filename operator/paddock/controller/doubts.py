"""Servers that were found elsewhere than on their device: they are replaced, and the pair is kept apart for a while.

A device of which several servers were found elsewhere gets nothing at all for a while. All this is forgotten when the
operator restarts, the node boots or its driver changes: then it is tried again, and found out again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from paddock.api.vocabulary import Reason
from paddock.controller.ledger import Ledger
from paddock.core.fleet import Fleet
from paddock.core.health import BROKEN, ready_of
from paddock.core.plan import Plan, Removal
from paddock.core.replica import Replica
from paddock.core.status import Finding

log = logging.getLogger("paddock.doubts")
REPLACED = frozenset(
    {Reason.WRONG_DEVICE, Reason.CPU_FALLBACK, Reason.SECOND_DEVICE, Reason.OVER_PLAN, Reason.OUT_OF_MEMORY}
)
"""Findings after which a server is made anew elsewhere. One whose log says nothing would say nothing elsewhere."""
LONGEST = 6 * 3600.0
"""Seconds that a pair is kept apart at most."""
REPEATED = 3
"""Servers found elsewhere after which their device gets nothing for a while."""


@dataclass(slots=True)
class _Pair:
    failures: int = 0
    until: float = 0.0
    until_clock: str = ""
    message: str = ""

    @property
    def why(self) -> str:
        """Why the deployment gets nothing there. The same words as long as it lasts."""
        return f"kept apart until {self.until_clock}: {self.message}"


class Doubts:
    """By deployment (namespace/name) and GPU."""

    def __init__(
        self,
        ledger: Ledger,
        seconds: float,
        look_again: Callable[[str, float], None],
        look_at_gpu: Callable[[str], None],
    ) -> None:
        """Keep a pair apart for `seconds` at first, twice as long each time; `look_at_gpu` has a GPU written anew."""
        self._ledger, self._seconds = ledger, seconds
        self._look_again, self._look_at_gpu = look_again, look_at_gpu
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._findings: dict[str, Finding] = {}
        self._incidents: dict[str, list[float]] = {}
        self._lifting: dict[str, asyncio.TimerHandle] = {}

    # -- what is known ---------------------------------------------------------------------------------------------

    def finding(self, deployment: str) -> Finding | None:
        """Give what was found of a deployment's last server, until another one is proven."""
        return self._findings.get(deployment)

    def fleet(self, deployment: str, fleet: Fleet) -> Fleet:
        """Give the fleet as this deployment may use it."""
        now = asyncio.get_running_loop().time()
        apart = {gpu: pair for (key, gpu), pair in self._pairs.items() if key == deployment and pair.until > now}
        if not apart:
            return fleet
        held = (one for one in fleet.at(apart) if one.ready)
        return fleet.with_devices(replace(one, ready=False, why_not=apart[one.gpu].why) for one in held)

    def replace(self, steps: Plan) -> Plan:
        """Have servers removed that were found elsewhere, and those that ended on a device that is out of order."""
        gone = [(one, why) for one in (*steps.current, *steps.outdated) if (why := self._why(one))]
        if not gone:
            return steps
        names = {one.name for one, _ in gone}
        return replace(
            steps,
            removals=(*steps.removals, *(Removal(one, why) for one, why in gone)),
            current=tuple(one for one in steps.current if one.name not in names),
            outdated=tuple(one for one in steps.outdated if one.name not in names),
        )

    def _why(self, one: Replica) -> str | None:
        if one.unverified and one.gate_reason in REPLACED:
            return one.gate_message
        if one.ready or one.waiting is None or one.record is None or one.record.gpu is None or not one.restarts:
            return None
        status = self._ledger.stored().get(one.record.gpu)
        ready = ready_of(status) if status is not None else None
        if ready is not None and ready.status != "True" and ready.reason in BROKEN:
            return f"it ended, and its device is out of order: {ready.message}"
        return None

    # -- what is learned -------------------------------------------------------------------------------------------

    def note(self, one: Replica) -> None:
        """Note a server that is removed because it was found elsewhere."""
        if not one.unverified or one.gate_reason not in REPLACED:
            return
        deployment = f"{one.namespace}/{one.deployment}"
        message = f"{one.name}: {one.gate_message}"
        self._findings[deployment] = Finding("False", Reason(one.gate_reason), message)
        gpu = one.record.gpu if one.record is not None else None
        if gpu is None:
            return
        now = asyncio.get_running_loop().time()
        pair = self._pairs.setdefault((deployment, gpu), _Pair())
        seconds = min(LONGEST, self._seconds * 2.0 ** min(pair.failures, 20))
        pair.failures, pair.until, pair.message = pair.failures + 1, now + seconds, one.gate_message
        pair.until_clock = f"{datetime.now(UTC) + timedelta(seconds=seconds):%H:%M:%S} UTC"
        # The queue keeps one appointment for each deployment, the earliest.
        asyncio.get_running_loop().call_later(seconds + 0.05, self._look_again, deployment, 0.0)
        log.warning("%s and %s are kept apart for %.0f s: %s", deployment, gpu, seconds, one.gate_message)
        if Reason(one.gate_reason) is not Reason.OVER_PLAN:
            self._incident(gpu, now, one.gate_message)

    def _incident(self, gpu: str, now: float, message: str) -> None:
        recent = [moment for moment in self._incidents.get(gpu, ()) if now - moment < 4 * self._seconds]
        self._incidents[gpu] = [*recent, now]
        if len(self._incidents[gpu]) < REPEATED:
            return
        text = f"{len(self._incidents[gpu])} servers were found elsewhere, the last one: {message}"
        self._ledger.doubt(gpu, f"{text}; tried again after {self._seconds:.0f} s")
        self._look_at_gpu(gpu)
        if (known := self._lifting.pop(gpu, None)) is not None:
            known.cancel()
        loop = asyncio.get_running_loop()
        self._lifting[gpu] = loop.call_later(self._seconds, self._lift, gpu)

    def _lift(self, gpu: str) -> None:
        self._lifting.pop(gpu, None)
        self._incidents.pop(gpu, None)
        self._ledger.doubt(gpu, None)
        self._look_at_gpu(gpu)

    def proven(self, one: Replica) -> None:
        """Note a server that was found where it belongs."""
        deployment = f"{one.namespace}/{one.deployment}"
        self._findings.pop(deployment, None)
        if one.record is not None and one.record.gpu is not None:
            self._pairs.pop((deployment, one.record.gpu), None)

    def begin_anew(self, gpus: Iterable[str]) -> None:
        """Forget all doubts about devices whose node was booted, or whose driver changed."""
        for gpu in gpus:
            for key in [key for key in self._pairs if key[1] == gpu]:
                del self._pairs[key]
                self._look_again(key[0], 0.0)
            if (known := self._lifting.pop(gpu, None)) is not None:
                known.cancel()
                self._lift(gpu)
            self._incidents.pop(gpu, None)

    def forget(self, deployment: str) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._findings.pop(deployment, None)
        for key in [key for key in self._pairs if key[0] == deployment]:
            del self._pairs[key]
