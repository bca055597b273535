"""The agent's metrics in Prometheus' text format."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paddock import __version__
from paddock.agent.lister import Statistics
from paddock.api.report import ListedDevice, NodeReport

CONTENT_TYPE = "text/plain; version=0.0.4"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_FAULTS = ("LibraryMissing", "ListingCrashed", "ListingTimedOut", "ListingFailed", "DriverFailed", "NoDevice")
_PAGE = os.sysconf("SC_PAGE_SIZE")

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


def render_metrics(report: NodeReport | None, statistics: Statistics, long_polls: int) -> str:
    """Give all metrics; those of devices are absent until the first listing is done."""
    return "".join(_families(report, statistics, long_polls))


def _families(report: NodeReport | None, statistics: Statistics, long_polls: int) -> Iterator[str]:
    yield _family("paddock_agent_info", "gauge", "The agent's version.", [({"version": __version__}, 1)])
    if report is not None:
        yield from _device_families(report)
    results = [({"result": result}, float(count)) for result, count in sorted(statistics.listings.items())]
    yield _family("paddock_agent_listings_total", "counter", "Full listings by result.", results)
    if statistics.seconds is not None:
        yield _family(
            "paddock_agent_listing_seconds", "gauge", "Time the last full listing took.", [({}, statistics.seconds)]
        )
    yield _family(
        "paddock_agent_memory_reads_total",
        "counter",
        "Looks at free memory between listings.",
        [({}, statistics.memory_reads)],
    )
    yield _family("paddock_agent_long_polls", "gauge", "Requests that wait for a new report.", [({}, long_polls)])
    yield _family("process_resident_memory_bytes", "gauge", "Resident memory of the agent.", [({}, resident_memory())])


def _device_families(report: NodeReport) -> Iterator[str]:
    backends = Counter(device.backend for device in report.devices)
    counts = [({"backend": backend}, float(count)) for backend, count in sorted(backends.items())]
    yield _family("paddock_agent_devices", "gauge", "Listed devices by backend.", counts)
    present = {fault.code for fault in report.faults}
    states = [({"code": code}, float(code in present)) for code in _FAULTS]
    yield _family("paddock_agent_fault", "gauge", "1 while the fault is reported.", states)
    for name, text, samples in (
        ("total", "Memory of the device.", [(d, d.memory_total) for d in report.devices]),
        ("free", "Free memory of the device, in steps of 256 MiB.", [(d, d.memory_free) for d in report.devices]),
    ):
        known = [(_labels(device), float(value)) for device, value in samples if value is not None]
        yield _family(f"paddock_agent_memory_{name}_bytes", "gauge", text, known)


def _labels(device: ListedDevice) -> Labels:
    """Two devices may share a name; their position in the backend tells them apart."""
    return {
        "backend": device.backend,
        "device": device.name,
        "pci_id": device.pci_id or "",
        "position": str(device.raw_index),
        "uuid": device.uuid or "",
    }


def _family(name: str, kind: str, text: str, samples: Sequence[Sample]) -> str:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        pairs = ",".join(f'{key}="{label.translate(_ESCAPES)}"' for key, label in labels.items())
        number = int(value) if float(value).is_integer() else value
        lines.append(f"{name}{{{pairs}}} {number}" if pairs else f"{name} {number}")
    return "\n".join(lines) + "\n"


def resident_memory() -> int:
    """Give the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
