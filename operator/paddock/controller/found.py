"""What the operator has found out about a model's files."""

from dataclasses import dataclass

from paddock.api.fetched import Origin
from paddock.api.report import HeaderSummary
from paddock.api.vocabulary import Reason
from paddock.core.companions import Present


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a model file."""

    summary: HeaderSummary | None = None
    reason: Reason = Reason.READING_HEADER
    message: str = ""
    file_nodes: frozenset[str] | None = None
    """Nodes that have the file; None when that is no question of nodes."""
    volume_nodes: frozenset[str] | None = None
    """Nodes that can mount the claim; None when all can."""
    origin: Origin | None = None
    """Which content a source has that must be fetched."""
    near_nodes: frozenset[str] = frozenset()
    """Nodes whose cache has the files."""
    beside: tuple[Present, ...] = ()
    """Projector, adapters and draft model."""
    retry_after: float | None = None
    """Seconds after which asking again makes sense; None when an event will tell."""
