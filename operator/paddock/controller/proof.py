"""Read what servers say of themselves: evidence for the readiness gate, and the last words of those that exit."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from paddock.api.gpu import Learned
from paddock.api.vocabulary import READINESS_GATE, Reason
from paddock.controller.cluster import STRATEGIC, Cluster, ClusterError, namespaced
from paddock.controller.events import Events
from paddock.controller.ledger import now
from paddock.controller.store import Replicas
from paddock.core.deployment import Deployment
from paddock.core.evidence import Expected, judge, last_error, parse_log
from paddock.core.learning import learned_of
from paddock.core.plan import Plan
from paddock.core.replica import CONTAINER, Replica

log = logging.getLogger("paddock.proof")
LOG_BYTES = 256 * 1024
"""Start of a server's log that is read for evidence."""
LONGEST_PAUSE = 15.0
"""Seconds between two attempts to read a log that cannot be read."""
MOST_ATTEMPTS = 4
"""How often the last words of one container are looked for."""
NO_CONTAINER = "-"
"""Stands in the gate's message for a container whose log was not judged yet."""


@dataclass(frozen=True, slots=True)
class _Crash:
    """What a server said before it ended, by the number of its container's restarts."""

    restarts: int
    attempts: int = 0
    reason: Reason = Reason.SERVER_FAILED
    words: str = ""


class Prover:
    """Opens the gate of servers that are proven, once for each container."""

    def __init__(
        self,
        cluster: Cluster,
        replicas: Replicas,
        events: Events,
        look_again: Callable[[str, float], None],
        learn: Callable[[str, Learned], Awaitable[None]],
    ) -> None:
        self._cluster, self._replicas, self._events, self._look_again = cluster, replicas, events, look_again
        self._learn = learn
        self._crashes: dict[str, _Crash] = {}
        self._unreadable: dict[str, int] = {}

    async def prove(self, deployment: Deployment) -> bool:
        """Judge the logs of servers that are up; tells whether a pod was changed: then another look follows."""
        changed = False
        for one in self._replicas.of(deployment.key):
            if one.gate_is_stale:
                await self._set_gate(
                    one, "False", Reason.AWAITING_EVIDENCE, "the container was restarted", NO_CONTAINER
                )
                changed = True
            elif one.needs_evidence:
                changed |= await self._judge(deployment, one)
        return changed

    async def _judge(self, deployment: Deployment, one: Replica) -> bool:
        record = one.record
        if record is None:
            await self._set_gate(one, "False", Reason.NO_EVIDENCE, "the pod has no record of its placement")
            return True
        try:
            text = await self._cluster.log(one.namespace, one.name, CONTAINER, limit_bytes=LOG_BYTES)
        except ClusterError as error:
            self._cannot_read(deployment, one, error)
            return False
        self._unreadable.pop(one.container_id, None)
        expected = Expected(
            name_in_pod=record.name_in_pod or None,
            pci_id=record.pci_id,
            description=record.description,
            host_weights=record.host_weights,
            device_weights=record.device_weights,
            need=record.need,
        )
        told = parse_log(text)
        evidence = judge(told, expected)
        learned = learned_of(record, told, evidence)
        if learned is not None and record.gpu is not None:
            log.warning("%s: its buffers have %d bytes more than estimated", one.key, learned.buffers_bytes)
            await self._learn(record.gpu, learned)
        await self._set_gate(one, "True" if evidence.verified else "False", evidence.reason, evidence.message)
        tell = self._events.normal if evidence.verified else self._events.warning
        tell(deployment, evidence.reason, f"{one.name}: {evidence.message}")
        log.info("%s: verified=%s, %s", one.key, evidence.verified, evidence.message)
        return True

    def _cannot_read(self, deployment: Deployment, one: Replica, error: ClusterError) -> None:
        """Try again with growing pauses; meanwhile the status says that evidence is awaited."""
        if error.not_found:
            return
        failures = self._unreadable.get(one.container_id, 0)
        self._unreadable[one.container_id] = failures + 1
        log.warning("%s: its log cannot be read: %s", one.key, error)
        message = f"{one.name}: its log cannot be read: {error.message}"
        self._events.warning(deployment, Reason.AWAITING_EVIDENCE, message)
        self._look_again(deployment.key, min(LONGEST_PAUSE, 0.5 * 2.0 ** min(failures, 10)))

    async def _set_gate(
        self, one: Replica, status: str, reason: Reason, message: str, container: str | None = None
    ) -> None:
        condition = {
            "type": READINESS_GATE,
            "status": status,
            "reason": str(reason),
            "message": f"{container or one.container_id or NO_CONTAINER} {message}"[:1024],
            "lastTransitionTime": now(),
        }
        path = namespaced("pods", one.namespace, one.name) + "/status"
        try:
            body = await self._cluster.patch(path, {"status": {"conditions": [condition]}}, STRATEGIC)
        except ClusterError as error:
            if not error.not_found:
                raise
            return
        self._replicas.apply("MODIFIED", body)
        self._look_again(f"{one.namespace}/{one.deployment}", 0.0)

    async def with_crashes(self, steps: Plan) -> Plan:
        """Put the server's own last words on replicas that keep exiting."""
        current = tuple([await self._with_last_words(one) for one in steps.current])
        return replace(steps, current=current)

    async def _with_last_words(self, one: Replica) -> Replica:
        if one.waiting is not Reason.SERVER_FAILED or not one.restarts:
            self._crashes.pop(one.uid, None)
            return one
        known = self._crashes.get(one.uid)
        if known is None or known.restarts != one.restarts:
            known = _Crash(one.restarts)
        if not known.words and known.attempts < MOST_ATTEMPTS:
            reason, words = await self._last_error(one) or (Reason.SERVER_FAILED, "")
            known = self._crashes[one.uid] = _Crash(one.restarts, known.attempts + 1, reason, words)
            if not words:
                self._look_again(f"{one.namespace}/{one.deployment}", 2.0**known.attempts)
        message = f"{one.waiting_message}: {known.words}".removesuffix(": ")
        return replace(one, waiting=known.reason, waiting_message=message)

    async def _last_error(self, one: Replica) -> tuple[Reason, str] | None:
        """Give what the container that ended last printed as its error; None when no such line can be read.

        A container that has just ended is not the previous one until the kubelet starts or delays the next, and its
        predecessor is already removed: then the kubelet refuses, or answers with an excuse instead of a log.
        """
        for previous in (True, False):
            try:
                text = await self._cluster.log(one.namespace, one.name, CONTAINER, tail_lines=200, previous=previous)
            except ClusterError as error:
                log.debug("no log of %s (previous: %s): %s", one.key, previous, error)
                continue
            if found := last_error(text):
                return found
        return None
