"""What a Reconciler works with."""

from collections.abc import Callable
from dataclasses import dataclass

from paddock.controller.claims import Claims
from paddock.controller.events import Events
from paddock.controller.health import Health
from paddock.controller.ledger import Ledger
from paddock.controller.lent import Lent
from paddock.controller.models import Models
from paddock.controller.volumes import Volumes


@dataclass(frozen=True, slots=True)
class Parts:
    """What a Reconciler works with."""

    ledger: Ledger
    models: Models
    volumes: Volumes
    events: Events
    health: Health
    claims: Claims
    lent: Lent
    changed: Callable[[], None]
    """To be called when room may have appeared for those who wait."""
