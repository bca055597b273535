"""Servers that were found elsewhere than on their device: they are replaced, and the pair is kept apart for a while.

A device of which several servers were found elsewhere gets nothing at all for a while. Who is kept apart until when is
in the status of the GPU object, so that another operator goes on with it. It ends when the node boots or its driver
changes: then it is tried again, and found out again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from paddock.api.gpu import Apart
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
MOST_KEPT = 8
"""Of which the times are remembered."""


_NEVER = datetime.fromtimestamp(0, UTC)


@dataclass(slots=True)
class _Pair:
    failures: int = 0
    until: datetime = _NEVER
    reason: str = ""
    message: str = ""

    @property
    def lasts(self) -> bool:
        """Whether it is not over yet."""
        return self.until > datetime.now(UTC)

    @property
    def why(self) -> str:
        """Why the deployment gets nothing there. The same words as long as it lasts."""
        return f"kept apart until {self.until:%H:%M:%S} UTC: {self.message}"


_EVERYBODY = ""
"""In place of a deployment: nobody gets anything there."""


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
        self._incidents: dict[str, list[datetime]] = {}
        self._ends: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def resume(self) -> None:
        """Take over what another operator has written of GPUs, once all of them are known."""
        for gpu, status in self._ledger.stored().items():
            times = [time for one in status.mismatches if (time := _time(gpu, one)) is not None]
            if times:
                self._incidents[gpu] = times[-MOST_KEPT:]
            for one in status.apart:
                if (until := _time(gpu, one.until)) is None:
                    continue
                pair = self._pairs[one.deployment, gpu] = _Pair(one.failures, until, one.reason, one.message)
                if one.deployment == _EVERYBODY:
                    self._ledger.doubt(gpu, one.message)
                self._set_end((one.deployment, gpu), pair)

    # -- what is known ---------------------------------------------------------------------------------------------

    def finding(self, deployment: str) -> Finding | None:
        """Give what was found of a deployment's last server, until another one is proven."""
        return self._findings.get(deployment)

    def fleet(self, deployment: str, fleet: Fleet) -> Fleet:
        """Give the fleet as this deployment may use it."""
        apart = {gpu: pair for (key, gpu), pair in self._pairs.items() if key == deployment and pair.lasts}
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
        pair = self._pairs.setdefault((deployment, gpu), _Pair())
        seconds = min(LONGEST, self._seconds * 2.0 ** min(pair.failures, 20))
        pair.failures, pair.until = pair.failures + 1, _after(seconds)
        pair.reason, pair.message = one.gate_reason, one.gate_message
        log.warning("%s and %s are kept apart for %.0f s: %s", deployment, gpu, seconds, one.gate_message)
        if Reason(one.gate_reason) is not Reason.OVER_PLAN:
            self._incident(gpu, one.gate_message)
        self._set_end((deployment, gpu), pair)
        self._tell(gpu)

    def _set_end(self, key: tuple[str, str], pair: _Pair) -> None:
        """Have it end by itself; the work queue would keep only the earliest appointment of a deployment."""
        self._cancel(key)
        left = max(0.0, (pair.until - datetime.now(UTC)).total_seconds())
        self._ends[key] = asyncio.get_running_loop().call_later(left + 0.05, self._end, key)

    def _cancel(self, key: tuple[str, str]) -> None:
        if (known := self._ends.pop(key, None)) is not None:
            known.cancel()

    def _end(self, key: tuple[str, str]) -> None:
        self._ends.pop(key, None)
        deployment, gpu = key
        if deployment == _EVERYBODY:
            self._lift(gpu)
        else:
            self._look_again(deployment, 0.0)
        self._tell(gpu)

    def _tell(self, gpu: str) -> None:
        """Have the GPU object say who is kept apart from it."""
        apart = [
            Apart(
                deployment=deployment,
                until=_written(pair.until),
                failures=pair.failures,
                reason=pair.reason,
                message=pair.message,
            )
            for (deployment, where), pair in sorted(self._pairs.items())
            if where == gpu and pair.lasts
        ]
        self._ledger.keep_apart(gpu, apart, [_written(one) for one in self._incidents.get(gpu, ())])
        self._look_at_gpu(gpu)

    def _incident(self, gpu: str, message: str) -> None:
        moment = datetime.now(UTC)
        recent = [one for one in self._incidents.get(gpu, ()) if (moment - one).total_seconds() < 4 * self._seconds]
        self._incidents[gpu] = [*recent, moment][-MOST_KEPT:]
        if len(self._incidents[gpu]) < REPEATED:
            return
        count = len(self._incidents[gpu])
        text = f"{count} servers were found elsewhere, the last one: {message}; tried again after {self._seconds:.0f} s"
        pair = _Pair(count, _after(self._seconds), Reason.REPEATED_MISMATCH, text)
        self._ledger.doubt(gpu, text)
        self._pairs[_EVERYBODY, gpu] = pair
        self._set_end((_EVERYBODY, gpu), pair)

    def _lift(self, gpu: str) -> None:
        self._pairs.pop((_EVERYBODY, gpu), None)
        self._incidents.pop(gpu, None)
        self._ledger.doubt(gpu, None)

    def proven(self, one: Replica) -> None:
        """Note a server that was found where it belongs."""
        deployment = f"{one.namespace}/{one.deployment}"
        self._findings.pop(deployment, None)
        if one.record is not None and one.record.gpu is not None:
            self._drop((deployment, one.record.gpu))

    def _drop(self, key: tuple[str, str]) -> None:
        self._cancel(key)
        if self._pairs.pop(key, None) is not None:
            self._tell(key[1])

    def begin_anew(self, gpus: Iterable[str]) -> None:
        """Forget all doubts about devices whose node was booted, or whose driver changed."""
        for gpu in gpus:
            for deployment, _ in [key for key in self._pairs if key[1] == gpu]:
                self._drop((deployment, gpu))
                if deployment != _EVERYBODY:
                    self._look_again(deployment, 0.0)
            known = gpu in self._incidents
            self._lift(gpu)
            if known:
                self._tell(gpu)

    def forget(self, deployment: str) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._findings.pop(deployment, None)
        for key in [key for key in self._pairs if key[0] == deployment]:
            self._drop(key)


def _time(gpu: str, text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        log.warning("GPU %s: %r is no time", gpu, text)
        return None


def _written(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _after(seconds: float) -> datetime:
    """Give the time in so many seconds, to the second as it is written."""
    return (datetime.now(UTC) + timedelta(seconds=seconds, microseconds=999_999)).replace(microsecond=0)
