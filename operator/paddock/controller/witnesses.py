"""What the agents see of processes on their cards, by node, and what follows for servers."""

from collections.abc import Iterable

from paddock.api.report import NodeReport
from paddock.controller.store import Replicas
from paddock.core.replica import Replica
from paddock.core.witness import Place, Sight, Subject, held, look


class Witnesses:
    """The newest report of each node, asked about servers."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._reports: dict[str, NodeReport] = {}
        self._sights: dict[str, object] = {}
        """What was seen last of each pod (namespace/name), to notice a change."""

    def take(self, node: str, report: NodeReport | None) -> set[str]:
        """Take over a report, or that there is none any more; gives the deployments of which it shows something new."""
        if report is None:
            self._reports.pop(node, None)
            return set()
        self._reports[node] = report
        changed = set()
        for one in self._on(node):
            seen = sorted(held(report.uses or (), subject_of(one)).items())
            if self._sights.get(one.key, []) != seen:
                self._sights[one.key] = seen
                changed.add(f"{one.namespace}/{one.deployment}")
        known = {one.key for one in self._replicas.values()}
        self._sights = {key: seen for key, seen in self._sights.items() if key in known}
        return changed

    def _on(self, node: str) -> Iterable[Replica]:
        return [one for one in self._replicas.values() if _node_of(one) == node]

    def sight(self, one: Replica) -> Sight:
        """Judge what the driver shows of a server."""
        report = self._reports.get(_node_of(one) or "")
        if report is None or not report.uses:
            return Sight()
        names = {device.pci_id: device.description for device in reversed(report.devices) if device.pci_id}
        return look(report.uses, subject_of(one), names)

    def bytes_of(self, one: Replica) -> int | None:
        """Give what a server's processes have of its own device, as the driver told it last; None when it did not."""
        report = self._reports.get(_node_of(one) or "")
        pci_id = one.record.pci_id if one.record is not None else None
        if report is None or pci_id is None:
            return None
        return held(report.uses or (), subject_of(one)).get(pci_id)

    def shown(self, node: str) -> dict[str, int]:
        """Give what the servers of a node have of their devices, by namespace/name of the pod."""
        return {one.key: self.bytes_of(one) or 0 for one in self._on(node)}

    def sees(self, node: str) -> bool:
        """Tell whether processes of a node are seen."""
        report = self._reports.get(node)
        return report is not None and bool(report.uses)

    def places(self, node: str) -> dict[str, Place]:
        """Give where our servers of a node belong, by UID of the pod."""
        return {
            one.uid: Place(one.record.pci_id if one.record is not None else None, one.record.need if one.record else 0)
            for one in self._on(node)
        }


def _node_of(one: Replica) -> str | None:
    return one.node or (one.record.node if one.record is not None else None)


def subject_of(one: Replica) -> Subject:
    """Give whom to look for, and where it belongs."""
    record = one.record
    container = one.container_id.rpartition("/")[2]
    if record is None or record.gpu is None:
        return Subject(one.uid, container, None)
    return Subject(one.uid, container, record.pci_id, record.need, record.device_weights)
