"""The operator's rights as `paddock doctor` asks for them; a test compares them with those that the chart grants."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from paddock.api.vocabulary import GROUP


class Where(Enum):
    """Where a right is needed."""

    CLUSTER = auto()
    SERVED = auto()
    """In each namespace whose ModelDeployments are served."""
    OWN = auto()
    """In the operator's namespace."""


class Option(Enum):
    """What has to be switched on for some rights to be needed; the value is the operator's setting."""

    DRA = "PADDOCK_DRA"
    HOLDER_PODS = "PADDOCK_HOLDER_PODS"
    NODE_CAPACITY = "PADDOCK_NODE_CAPACITY"


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    """Empty: on the cluster."""
    name: str = ""

    @property
    def words(self) -> str:
        """Name it as kubectl does."""
        group = f".{self.group}" if self.group else ""
        sub = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{group}{sub}" + (f" in {self.namespace}" if self.namespace else "")


@dataclass(frozen=True, slots=True)
class _Rule:
    where: Where
    group: str
    resource: str
    verbs: tuple[str, ...]
    subresource: str = ""
    name: str = ""
    with_folders: tuple[str, ...] = ()
    """Verbs that are needed only where nodes have model roots or a cache."""
    option: Option | None = None
    """With what it is needed; None: always."""


_RULES: Final = (
    _Rule(Where.SERVED, GROUP, "modeldeployments", ("list", "watch")),
    _Rule(Where.SERVED, GROUP, "modeldeployments", ("patch",), "status"),
    _Rule(Where.SERVED, "", "pods", ("get", "list", "watch", "create", "delete")),
    _Rule(Where.SERVED, "", "pods", ("get",), "log"),
    _Rule(Where.SERVED, "", "pods", ("patch",), "status"),
    _Rule(Where.SERVED, "", "services", ("get", "create")),
    _Rule(Where.SERVED, "", "persistentvolumeclaims", ("get",), with_folders=("create", "delete")),
    _Rule(Where.SERVED, "", "events", ("create",)),
    _Rule(Where.CLUSTER, GROUP, "gpus", ("get", "list", "watch", "create", "delete")),
    _Rule(Where.CLUSTER, GROUP, "gpus", ("update",), "status"),
    _Rule(Where.CLUSTER, GROUP, "placementpolicies", ("list", "watch")),
    _Rule(Where.CLUSTER, "", "nodes", ("list", "watch")),
    _Rule(Where.CLUSTER, "", "persistentvolumes", ("get",), with_folders=("list", "create", "delete")),
    _Rule(Where.CLUSTER, "node.k8s.io", "runtimeclasses", ("list", "watch")),
    _Rule(Where.OWN, "coordination.k8s.io", "leases", ("get", "create", "update")),
    _Rule(Where.OWN, "", "secrets", ("create",)),
    _Rule(Where.OWN, "", "secrets", ("get",), name="paddock-agent"),
    _Rule(Where.OWN, "", "pods", ("list", "watch")),
    _Rule(Where.SERVED, "resource.k8s.io", "resourceclaims", ("get", "create"), option=Option.DRA),
    _Rule(Where.CLUSTER, "resource.k8s.io", "resourceslices", ("list",), option=Option.DRA),
    _Rule(Where.SERVED, "", "pods", ("patch",), option=Option.HOLDER_PODS),
    _Rule(Where.OWN, "", "pods", ("create", "delete"), option=Option.HOLDER_PODS),
    _Rule(Where.CLUSTER, "", "nodes", ("patch",), "status", option=Option.NODE_CAPACITY),
)


def options_of(environment: Mapping[str, str]) -> frozenset[Option]:
    """Give what is switched on in an operator's environment."""
    off = ("", "false", "Disabled")
    return frozenset(one for one in Option if environment.get(one.value, "") not in off)


def rights(own: str, served: Sequence[str], *, folders: bool, options: Collection[Option] = ()) -> Iterator[Right]:
    """Give what the operator needs: `own` is its namespace, `served` those of ModelDeployments (empty: all)."""
    for rule in _RULES:
        if rule.option is not None and rule.option not in options:
            continue
        verbs = (*rule.verbs, *(rule.with_folders if folders else ()))
        spaces = {Where.CLUSTER: ("",), Where.OWN: (own,), Where.SERVED: tuple(served) or ("",)}[rule.where]
        for space in spaces:
            for verb in verbs:
                yield Right(verb, rule.group, rule.resource, rule.subresource, space, rule.name)
