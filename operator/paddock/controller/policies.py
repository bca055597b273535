"""The PlacementPolicies, as rules by name."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from paddock.api.placementpolicy import PlacementPolicySpec
from paddock.controller.cluster import POLICIES, Cluster, ClusterError
from paddock.controller.store import Latest
from paddock.core.rules import Rule, rule_of

log = logging.getLogger("paddock.policies")


class Policies:
    """Keeps the rules up to date."""

    def __init__(self, cluster: Cluster, rules: dict[str, Rule], changed: Callable[[], None]) -> None:
        """Keep `rules`, and call `changed` when one of them has another effect."""
        self._cluster, self._rules, self._changed = cluster, rules, changed
        self._latest = Latest()

    async def read(self) -> None:
        """Read all of them; none where their definition is not installed yet."""
        try:
            found = await self._cluster.list(POLICIES)
            for one in found:
                self.apply(None, one)
            missing = self._latest.missing({one["metadata"]["name"] for one in found})
            gone = [(name, uid) for name, uid in missing if await self._cluster.is_gone(POLICIES, name, uid)]
        except ClusterError as error:
            if not error.not_found:
                raise
            gone = self._latest.missing(())
        for name, uid in gone:
            self.apply("DELETED", {"metadata": {"name": name, "uid": uid}})

    def apply(self, type_: str | None, body: Mapping[str, Any]) -> None:
        """Take over a PlacementPolicy; one that cannot be read stays as it was."""
        name = body["metadata"]["name"]
        if not self._latest.take(type_, name, body["metadata"]):
            return
        before = self._rules.get(name)
        if type_ == "DELETED":
            self._rules.pop(name, None)
        else:
            try:
                self._rules[name] = rule_of(name, PlacementPolicySpec.model_validate(body.get("spec") or {}))
            except ValueError as error:
                log.warning("PlacementPolicy %s cannot be read, and stays as it was: %s", name, error)
        if self._rules.get(name) != before:
            self._changed()
