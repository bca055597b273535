"""PlacementPolicies as rules for one deployment: which devices, how much of them, and how they are picked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paddock.api.disruption import DisruptionRules
from paddock.api.modeldeployment import Policy
from paddock.api.placementpolicy import PlacementPolicySpec
from paddock.api.selector import DeviceSelector
from paddock.core.fleet import Device, Fleet, Node
from paddock.core.quantity import human, parse_quantity, seconds_of
from paddock.core.selector import matches, mismatch


@dataclass(frozen=True, slots=True)
class Rule:
    """One PlacementPolicy. Sizes in bytes."""

    name: str
    namespaces: tuple[str, ...] = ()
    """Patterns; none means every namespace."""
    default: Policy | None = None
    gpus: DeviceSelector | None = None
    quota: int | None = None
    """Over all devices."""
    budgets: tuple[tuple[DeviceSelector, int], ...] = ()
    """Of each device that is meant."""
    max_priority: int | None = None
    disruption: "Leave | None" = None
    """What it says about moves and evictions; None: nothing."""

    def covers(self, namespace: str) -> bool:
        """Tell whether the rule holds for a namespace."""
        return not self.namespaces or any(matches(pattern, namespace) for pattern in self.namespaces)


@dataclass(frozen=True, slots=True)
class Leave:
    """Whether others may be disturbed, and how often. Times in seconds."""

    moves: bool = False
    eviction: bool = False
    interval: int = 0
    per_minute: int = 0
    hold_after: int | None = None
    """When room begins to be kept; None: never."""


@dataclass(frozen=True, slots=True)
class Excess:
    """What a rule refuses: what is needed and what is left of its allowance, in bytes."""

    words: str
    required: int
    left: int


def rule_of(name: str, spec: PlacementPolicySpec) -> Rule:
    """Read a PlacementPolicy."""
    return Rule(
        name=name,
        namespaces=tuple(spec.namespaces),
        default=spec.default_policy,
        gpus=spec.gpus,
        quota=int(parse_quantity(spec.max_gpu_memory)) if spec.max_gpu_memory is not None else None,
        budgets=tuple((one.selector, int(parse_quantity(one.memory))) for one in spec.budgets),
        max_priority=spec.max_priority,
        disruption=_leave_of(spec.disruption) if spec.disruption is not None else None,
    )


def _leave_of(said: DisruptionRules) -> Leave:
    return Leave(
        moves=said.moves,
        eviction=said.eviction,
        interval=seconds_of(said.min_interval),
        per_minute=said.max_per_minute,
        hold_after=seconds_of(said.hold_room_after) if said.hold_room_after is not None else None,
    )


def leave_under(rules: Iterable[Rule]) -> Leave:
    """Give what all rules together let happen: what each of those allows that say anything, and at least one must."""
    said = [rule.disruption for rule in rules if rule.disruption is not None]
    if not said:
        return Leave()
    return Leave(
        moves=all(one.moves for one in said),
        eviction=all(one.eviction for one in said),
        interval=max(one.interval for one in said),
        per_minute=min(one.per_minute for one in said),
        hold_after=max((one.hold_after for one in said if one.hold_after is not None), default=None),
    )


def rules_for(namespace: str, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Give the rules that hold for a namespace, by name."""
    return tuple(sorted((one for one in rules if one.covers(namespace)), key=lambda one: one.name))


def default_policy(rules: Iterable[Rule]) -> Policy | None:
    """Give what Auto stands for, if a rule says so."""
    return next((one.default for one in rules if one.default is not None), None)


def priority_problem(priority: int, rules: Iterable[Rule]) -> str | None:
    """Say why a priority is refused, if so."""
    for rule in rules:
        if rule.max_priority is not None and priority > rule.max_priority:
            return f"spec.priority is {priority}; PlacementPolicy {rule.name} allows up to {rule.max_priority} here"
    return None


def forbidden(rules: Iterable[Rule], device: Device, node: Node | None) -> str | None:
    """Say which rule keeps a device from a deployment, if one does."""
    for rule in rules:
        excluded = mismatch(rule.gpus, device, node) if rule.gpus is not None else None
        if excluded is not None:
            return f"PlacementPolicy {rule.name}: {excluded}"
    return None


def used(rules: Iterable[Rule], fleet: Fleet) -> Mapping[str, int]:
    """Give the bytes that the namespaces of each rule with a quota have reserved, by the rule's name."""
    return {
        rule.name: sum(size for namespace, size in fleet.index.books.reserved.items() if rule.covers(namespace))
        for rule in rules
        if rule.quota is not None
    }


def excess(
    rules: Iterable[Rule], device: Device, node: Node | None, need: int, quotas: Mapping[str, int]
) -> Excess | None:
    """Give what a rule allows no more of, if one does; `quotas` is what `used` gave."""
    for rule in rules:
        if rule.quota is not None:
            left = max(0, rule.quota - quotas.get(rule.name, 0))
            if need > left:
                words = f"{human(left)} left of {human(rule.quota)} that it allows over all GPUs"
                return Excess(f"needs {human(need)}, PlacementPolicy {rule.name} has {words}", need, left)
        for selector, size in rule.budgets:
            left = max(0, size - _reserved(rule, device))
            if need > left and mismatch(selector, device, node) is None:
                words = f"{human(left)} left of {human(size)} that it allows on this GPU"
                return Excess(f"needs {human(need)}, PlacementPolicy {rule.name} has {words}", need, left)
    return None


def _reserved(rule: Rule, device: Device) -> int:
    return sum(claim.bytes for claim in device.claims if rule.covers(claim.deployment.partition("/")[0]))


class Allowance:
    """What rules leave on the devices of one class: they are meant by the same budgets."""

    def __init__(
        self, rules: Iterable[Rule], device: Device, node: Node | None, need: int, quotas: Mapping[str, int]
    ) -> None:
        """Take one device for all of its class; `quotas` is what `used` gave."""
        self._need = need
        self._checks: list[tuple[Rule | None, int]] = []
        """In the order of `excess`: what a quota leaves, or a rule and its budget."""
        for rule in rules:
            if rule.quota is not None and need > (left := max(0, rule.quota - quotas.get(rule.name, 0))):
                self._checks.append((None, left))
            self._checks += [
                (rule, size) for selector, size in rule.budgets if mismatch(selector, device, node) is None
            ]
        self.unlimited = not self._checks

    def missing(self, device: Device) -> int:
        """Give the bytes that are not allowed; 0 where the need is."""
        for rule, size in self._checks:
            left = size if rule is None else max(0, size - _reserved(rule, device))
            if self._need > left:
                return self._need - left
        return 0
