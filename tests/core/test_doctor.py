"""Each thing that may be wrong with an installation is found, named, and comes with what to do."""

from dataclasses import replace

import pytest

from paddock.api.binding import DevicePlugin
from paddock.api.gpu import Apart, DeviceType, GPUStatus
from paddock.api.modeldeployment import Condition
from paddock.core.checkup import Facts, Finding, Gpu, Kind, Lease, Node, Pod, State, Workload
from paddock.core.doctor import examine, fields_of, worst
from paddock.core.rights import rights

HOME = "paddock-system"


def gpu(reason: str = "Listed", message: str = "listed", *, node: str = "node1", driver: str | None = "580.1") -> Gpu:
    ready = Condition(
        type="Ready",
        status="True" if reason == "Listed" else "False",
        reason=reason,
        message=message,
        last_transition_time="2026-03-01T11:00:00Z",
    )
    status = GPUStatus(
        node=node, uuid="GPU-1", name="CUDA0", description="RTX", type=DeviceType.DISCRETE, driver=driver,
        conditions=[ready],
    )  # fmt: skip
    return Gpu(f"gpu-{node}", status)


def apart(deployment: str) -> Gpu:
    one = gpu()
    pair = Apart(deployment=deployment, until="2026-03-01T12:00:00Z", reason="WrongDevice", message="elsewhere")
    return replace(one, status=one.status.model_copy(update={"apart": [pair]}))


def with_plugin(*, registered: bool) -> Gpu:
    plugin = DevicePlugin(resource="gpu.paddock.dev/x", granules=4, hands="Devices", registered=registered)
    return replace(gpu(), status=gpu().status.model_copy(update={"plugin": plugin}))


OPERATOR = Workload(HOME, "paddock-operator", "1.0", 1, 1)
AGENTS = Workload(HOME, "paddock-agent-nvidia", "1.0", 1, 1, "nvidia")
AGENT = Pod(HOME, "paddock-agent-nvidia-x", "node-agent", "node1", ready=True, image="agent:1")
WELL = Facts(
    client="1.0",
    kinds=[Kind("gpus.paddock.dev")],
    operators=[OPERATOR],
    agents=[AGENTS],
    pods=[Pod(HOME, "paddock-operator-a", "operator", "node1", ready=True), AGENT],
    lease=Lease("paddock-operator-a", 2.0),
    lacking_rights=[],
    runtime_classes=frozenset({"nvidia"}),
    nodes=[Node("node1", resources={"hugepages/x": 1}, heartbeat=3.0, has_gpu=True)],
    gpus=[gpu()],
    skew=0.2,
)


def bad(facts: Facts) -> list[Finding]:
    return [one for one in examine(facts) if one.state is not State.OK]


def test_a_sound_installation_has_only_good_lines() -> None:
    found = examine(WELL)
    assert worst(found) is State.OK
    assert {one.check for one in found} == {
        "kinds", "operator", "lease", "rights", "images", "runtime class", "agents", "driver", "reports", "plugins",
        "clock",
    }  # fmt: skip
    assert not any(one.remedy for one in found)


BROKEN: dict[str, tuple[Facts, str, State, str]] = {
    "kind missing": (replace(WELL, kinds=[Kind("gpus.paddock.dev", there=False)]), "kinds", State.WRONG, "not know"),
    "kind not served": (
        replace(WELL, kinds=[Kind("gpus.paddock.dev", established=False)]), "kinds", State.WRONG, "not served",
    ),
    "kind older": (replace(WELL, kinds=[Kind("g", older=("spec.x",))]), "kinds", State.WRONG, "drops spec.x"),
    "kind newer": (replace(WELL, kinds=[Kind("g", newer=("spec.x",))]), "kinds", State.WARNING, "newer"),
    "no operator": (replace(WELL, operators=[]), "operator", State.WRONG, "no operator"),
    "two operators": (
        replace(WELL, operators=[OPERATOR, replace(OPERATOR, namespace="b")]), "operator", State.WRONG, "several",
    ),
    "operator down": (replace(WELL, operators=[replace(OPERATOR, ready=0)]), "operator", State.WRONG, "not up"),
    "operator at 0": (replace(WELL, operators=[replace(OPERATOR, wanted=0)]), "operator", State.WRONG, "scaled to 0"),
    "other version": (replace(WELL, client="2.0"), "operator", State.WARNING, "is 1.0, this program is 2.0"),
    "lease old": (replace(WELL, lease=Lease("paddock-operator-a", 40.0)), "lease", State.WRONG, "40 s ago"),
    "lease given up": (replace(WELL, lease=Lease("", 1.0)), "lease", State.WRONG, "nobody leads"),
    "lease of a stranger": (replace(WELL, lease=Lease("laptop", 1.0)), "lease", State.WARNING, "laptop leads"),
    "no lease": (replace(WELL, lease=None), "lease", State.WARNING, "nobody leads"),
    "rights": (replace(WELL, lacking_rights=["list nodes"]), "rights", State.WRONG, "may not: list nodes"),
    "image": (
        replace(WELL, pods=[replace(AGENT, ready=False, waiting="ErrImagePull", message="no such host")]),
        "images", State.WRONG, "agent:1 cannot be pulled for paddock-system/paddock-agent-nvidia-x: no such host",
    ),
    "runtime class": (replace(WELL, runtime_classes=frozenset()), "runtime class", State.WRONG, "does not exist"),
    "pod security": (replace(WELL, pod_security="restricted"), "pod security", State.WARNING, "restricted"),
    "no toolkit": (
        replace(
            WELL,
            pods=[*(WELL.pods or ())[:1], replace(AGENT, ready=False, message='no runtime for "nvidia" is configured')],
        ),
        "agents", State.WRONG, "no runtime for",
    ),
    "no pods of the agents": (
        replace(
            WELL, pods=(WELL.pods or ())[:1], nodes=[], gpus=[gpu()],
            warnings={"paddock-agent-nvidia": "forbidden: quota"},
        ),
        "agents", State.WRONG, "forbidden: quota",
    ),
    "a node without an agent": (
        replace(WELL, nodes=[Node("node1"), Node("node9", has_gpu=True)]), "agents", State.WARNING, "no agent",
    ),
    "no GPU": (replace(WELL, gpus=[]), "driver", State.WRONG, "no GPU"),
    "listing": (
        replace(WELL, gpus=[gpu("ListingFailed", "LibraryMissing: libggml")]), "driver", State.WRONG, "LibraryMissing",
    ),
    "driver": (replace(WELL, gpus=[gpu(driver=None)]), "driver", State.WARNING, "version"),
    "report": (replace(WELL, gpus=[gpu("AgentSilent", "silent for 70 s")]), "reports", State.WRONG, "AgentSilent"),
    "quarantine": (replace(WELL, gpus=[replace(gpu(), quarantined=True)]), "quarantine", State.WARNING, "quarantine"),
    "a pair kept apart": (
        replace(WELL, gpus=[apart("default/gemma")]), "quarantine", State.WARNING, "gemma gets nothing on gpu-node1",
    ),
    "a card that nobody gets": (
        replace(WELL, gpus=[apart("")]), "quarantine", State.WARNING, "nobody gets anything on gpu-node1 until",
    ),
    "plugin": (
        replace(WELL, nodes=[Node("node1", resources={"nvidia.com/gpu": 2})]), "plugins", State.WARNING,
        "2 nvidia.com/gpu",
    ),
    "a plugin that may come back": (
        replace(WELL, nodes=[Node("node1", resources={"nvidia.com/gpu": 0})]), "plugins", State.WARNING,
        "nvidia.com/gpu is listed with 0",
    ),
    "a plugin that is not heard": (
        replace(WELL, gpus=[with_plugin(registered=False)]), "plugins", State.WARNING, "does not listen",
    ),
    "own clock": (replace(WELL, skew=-30.0), "clock", State.WARNING, "30 s behind"),
    "a node's clock": (replace(WELL, nodes=[Node("node1", heartbeat=-20)]), "clock", State.WRONG, "20 s ahead of"),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "check", "state", "words"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_is_found_and_has_a_remedy(facts: Facts, check: str, state: State, words: str) -> None:
    found = [one for one in bad(facts) if one.check == check and one.state is state]
    assert any(words in one.message for one in found), bad(facts)
    assert all(one.remedy for one in found)


def test_what_may_not_be_read_is_told_and_never_sound() -> None:
    found = examine(Facts(client="1.0"))
    assert worst(found) is State.WARNING
    assert {one.check for one in found} == {
        "kinds",
        "operator",
        "images",
        "runtime class",
        "agents",
        "driver",
        "plugins",
    }
    assert all("not checked" in one.message for one in found)


def test_where_nothing_is_installed_no_right_to_read_is_asked_for() -> None:
    found = examine(replace(WELL, kinds=[Kind("gpus.paddock.dev", there=False)], operators=[], gpus=None))
    assert not any("not checked" in one.message for one in found)


def test_one_node_alone_is_shown_with_what_concerns_all() -> None:
    facts = replace(WELL, gpus=[gpu("AgentSilent"), gpu("AgentSilent", node="node2")])
    assert {one.node for one in examine(facts, "node2")} == {"", "node2"}


def test_a_vendors_plugin_on_a_node_without_our_cards_is_no_conflict() -> None:
    facts = replace(WELL, nodes=[Node("node1"), Node("other", resources={"nvidia.com/gpu": 8}, has_gpu=False)])
    assert not [one for one in bad(facts) if one.check == "plugins"]


@pytest.mark.parametrize("said", ["dedicated", "kept_off"])
def test_a_plugin_that_is_kept_off_is_no_conflict(said: str) -> None:
    node = replace(Node("node1", resources={"nvidia.com/gpu": 0}), **{said: True})
    assert bad(replace(WELL, nodes=[node])) == []


def test_a_plugin_on_a_dedicated_node_is_no_conflict() -> None:
    node = Node("node1", resources={"nvidia.com/gpu": 2}, dedicated=True)
    assert bad(replace(WELL, nodes=[node], gpus=[with_plugin(registered=True)])) == []


def test_fields_of_a_schema_are_named_by_path() -> None:
    schema = {
        "properties": {
            "spec": {"properties": {"a": {}, "list": {"items": {"properties": {"b": {}}}}}},
            "labels": {"additionalProperties": {"type": "string"}},
        }
    }
    assert set(fields_of(schema)) == {"spec", "spec.a", "spec.list", "spec.list[].b", "labels"}


def test_rights_depend_on_folders_and_namespaces() -> None:
    every = {one.words for one in rights(HOME, (), folders=True)}
    assert "create persistentvolumes" in every
    assert "get secrets in paddock-system" in every
    few = {one.words for one in rights(HOME, ("team-a",), folders=False)}
    assert "create persistentvolumes" not in few
    assert "create pods in team-a" in few
    assert "create pods" not in few
