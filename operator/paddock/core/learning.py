"""What a server that was seen teaches about the next ones on its device."""

from paddock.api.gpu import Learned
from paddock.api.vocabulary import Reason
from paddock.core.evidence import Evidence, ServerLog
from paddock.core.images import build_of
from paddock.core.quantity import MIB
from paddock.core.replica import Record

TOLERANCE = 2 * MIB
"""Bytes: a log tells sizes in MiB with two digits."""


def learned_of(record: Record, log: ServerLog, evidence: Evidence) -> Learned | None:
    """Give by how much a server's buffers are above their estimate; None where they are not, or prove another fault."""
    if not evidence.verified and evidence.reason is not Reason.OUT_OF_MEMORY:
        return None
    if record.gpu is None or not record.device_buffers or not log.devices:
        return None
    above = log.on(log.devices[0].name) - record.device_buffers
    if above <= TOLERANCE:
        return None
    return Learned(backend=record.backend, build=build_of(record.image), buffers_bytes=above)
