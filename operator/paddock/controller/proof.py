"""Evidence for the readiness gate, from the servers' logs and from drivers, and the last words of those that exit."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from paddock.api.gpu import Learned
from paddock.api.vocabulary import READINESS_GATE, Reason
from paddock.controller.clock import now
from paddock.controller.cluster import STRATEGIC, Cluster, ClusterError, namespaced
from paddock.controller.parts import Parts
from paddock.controller.store import Replicas
from paddock.controller.witnesses import subject_of
from paddock.core.deployment import Deployment
from paddock.core.evidence import Evidence, Expected, is_loaded, judge, last_error, parse_log
from paddock.core.images import build_of
from paddock.core.learning import learned_of
from paddock.core.plan import Plan
from paddock.core.replica import CONTAINER, NO_CONTAINER, Record, Replica
from paddock.core.witness import combine

log = logging.getLogger("paddock.proof")
LOG_BYTES = 256 * 1024
"""Start of a server's log that is read for evidence."""
LONGEST_PAUSE = 15.0
"""Seconds between two attempts to read a log that cannot be read."""
MOST_ATTEMPTS = 4
"""How often the last words of one container are looked for."""
PATIENCE = 5.0
"""Seconds from the first look at a server that is up, for its driver to show what is missing."""
BINDING_PAUSE = 1.0
"""Seconds between looks at a server of which it is not known what it was given."""
GLANCE = 0.25
"""Seconds between looks meanwhile."""


GLANCES = (0.3, 0.5, 0.8, 1.2)
"""Seconds from one look at the log of a server that comes up to the next: the kubelet tells of it up to two seconds
after it is up, and once more as late of the gate."""
FORGOTTEN = 3600.0
"""Seconds after which it is forgotten how often a container was looked at."""
MOST_GLANCED_AT = 8
"""Servers that are looked at so at once; the others wait for the kubelet's word."""
TAIL = 8
"""Lines at the end of a log that is looked at so."""


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
        parts: Parts,
        look_again: Callable[[str, float], None],
    ) -> None:
        self._cluster, self._replicas, self._events, self._look_again = cluster, replicas, parts.events, look_again
        self._learn, self._claims, self._lent = parts.ledger.learn, parts.claims, parts.lent
        self._witnesses, self._doubts = parts.health.witnesses, parts.health.doubts
        self._said: dict[str, tuple[float, Evidence]] = {}
        """By container id, while its driver's word is waited for: since when, and what its log says."""
        self._taught: dict[str, int] = {}
        """By UID of the pod: what was handed on of its process."""
        self._crashes: dict[str, _Crash] = {}
        self._unreadable: dict[str, int] = {}
        self._glanced: dict[str, tuple[int, float]] = {}
        """By container id: how often it was looked at, and until when it is left alone."""

    async def prove(self, deployment: Deployment) -> bool:
        """Judge the logs of servers that are up; tells whether a pod was changed: then another look follows."""
        changed = False
        for one in self._replicas.of(deployment.key):
            if one.gate_is_stale:
                await self._set_gate(
                    one, "False", Reason.AWAITING_EVIDENCE, "the container was restarted", NO_CONTAINER
                )
                changed = True
            elif (by_binding := await self._look_at_binding(deployment, one)) is not None:
                changed |= by_binding
            elif one.needs_evidence:
                changed |= await self._judge(deployment, one)
            elif one.comes_up and one.container_id:
                changed |= await self._glance(deployment, one)
            elif one.verified and not one.deleting:
                changed |= await self._look_at_proven(deployment, one)
        return changed

    async def _look_at_binding(self, deployment: Deployment, one: Replica) -> bool | None:
        """See to what a server was given by others; None when nothing is wrong, else whether the pod was changed."""
        if (problem := await self._claims.ensure(one)) is not None:
            self._events.warning(deployment, Reason.POD_REFUSED, f"{one.name} gets no ResourceClaim: {problem}")
            self._look_again(deployment.key, LONGEST_PAUSE)
        found = await self._claims.look(one) or await self._lent.look(deployment, one)
        if found is None:
            return None
        if found.reason is Reason.AWAITING_EVIDENCE:
            self._look_again(deployment.key, BINDING_PAUSE)
            return False
        if found.reason is Reason.NO_EVIDENCE:
            log.warning("%s: %s", one.key, found.message)
            self._events.warning(deployment, found.reason, f"{one.name}: {found.message}")
            self._look_again(deployment.key, LONGEST_PAUSE)
            return False
        await self._conclude(deployment, one, found)
        return True

    async def _look_at_proven(self, deployment: Deployment, one: Replica) -> bool:
        """Close the gate of a server that its driver shows elsewhere meanwhile; note the driver's word if it is new.

        A process that is not listed any more refutes nothing here: a container that ended is the kubelet's to tell of.
        """
        self._doubts.proven(one)
        await self._teach(one)
        sight = self._witnesses.sight(one)
        found = sight.evidence
        if found is None or sight.hasty or (found.verified and one.gate_reason != Reason.BUFFERS_ON_DEVICE):
            return False
        message = f"{one.gate_message}; {found.message}" if found.verified else found.message
        await self._conclude(deployment, one, replace(found, message=message))
        return True

    async def _teach(self, one: Replica) -> None:
        """Hand on what a proven server has beside its estimated buffers."""
        size, record = self._witnesses.bytes_of(one), one.record
        if size is None or record is None or record.gpu is None or not record.device_buffers or not one.ready:
            return
        if self._taught.get(one.uid) == size:
            return
        if len(self._taught) > 2 * len(self._replicas):
            self._taught.clear()
        beside = max(0, size - record.device_buffers)
        await self._learn(
            record.gpu, Learned(backend=record.backend, build=build_of(record.image), process_bytes=beside)
        )
        self._taught[one.uid] = size

    async def _glance(self, deployment: Deployment, one: Replica) -> bool:
        """Judge a server as soon as its log says that it is up; its gate is then open when the kubelet finds it up."""
        now_ = asyncio.get_running_loop().time()
        times, until = self._glanced.get(one.container_id, (0, 0.0))
        if times == 0:
            self._glanced = {key: value for key, value in self._glanced.items() if now_ - value[1] < FORGOTTEN}
            if sum(value[1] > now_ for value in self._glanced.values()) >= MOST_GLANCED_AT:
                return False
        if times == len(GLANCES):
            return False
        if until > now_:
            self._look_again(deployment.key, until - now_)
            return False
        self._glanced[one.container_id] = times + 1, now_ + GLANCES[times]
        self._look_again(deployment.key, GLANCES[times])
        try:
            end = await self._cluster.log(one.namespace, one.name, CONTAINER, tail_lines=TAIL)
        except ClusterError:
            return False  # The kubelet may not have it yet.
        return is_loaded(end) and await self._judge(deployment, one, early=True)

    async def _judge(self, deployment: Deployment, one: Replica, *, early: bool = False) -> bool:
        """Conclude from what there is; `early` only that all is well."""
        record = one.record
        if record is None:
            await self._set_gate(one, "False", Reason.NO_EVIDENCE, "the pod has no record of its placement")
            return True
        log_says = await self._log_of(deployment, one, record)
        if log_says is None or (early and not log_says.verified):
            return False
        sight = self._witnesses.sight(one)
        if sight.hasty and self._is_early(one, log_says):
            self._look_again(deployment.key, GLANCE)
            return False
        self._said.pop(one.container_id, None)
        await self._conclude(deployment, one, combine(log_says, sight.evidence, subject_of(one)))
        return True

    def _is_early(self, one: Replica, log_says: Evidence) -> bool:
        """Tell whether the driver may still show what is missing; a log that refutes needs no second witness."""
        since, _ = self._said.setdefault(one.container_id, (asyncio.get_running_loop().time(), log_says))
        return log_says.verified and asyncio.get_running_loop().time() - since < PATIENCE

    async def _log_of(self, deployment: Deployment, one: Replica, record: Record) -> Evidence | None:
        """Judge the server's log, read once for each container; None when it cannot be read yet."""
        if one.container_id in self._said:
            return self._said[one.container_id][1]
        try:
            text = await self._cluster.log(one.namespace, one.name, CONTAINER, limit_bytes=LOG_BYTES)
        except ClusterError as error:
            self._cannot_read(deployment, one, error)
            return None
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
        return evidence

    async def _conclude(self, deployment: Deployment, one: Replica, evidence: Evidence) -> None:
        """Open the gate or keep it shut, and say so."""
        await self._set_gate(one, "True" if evidence.verified else "False", evidence.reason, evidence.message)
        tell = self._events.normal if evidence.verified else self._events.warning
        tell(deployment, evidence.reason, f"{one.name}: {evidence.message}")
        log.info("%s: verified=%s, %s", one.key, evidence.verified, evidence.message)

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
