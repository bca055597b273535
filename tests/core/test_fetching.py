"""Pods that fetch model files: what they may see, and what their last words mean."""

import json
from typing import Any

import pytest

from paddock.api.fetched import Origin, SourceFile
from paddock.api.vocabulary import Annotation, Reason
from paddock.core.deployment import Deployment, revision
from paddock.core.failures import fetch_of, progress_in, shown
from paddock.core.fetching import (
    Fetcher,
    Order,
    cache_root,
    cached_file,
    header_name,
    header_pod,
    is_there,
    prefetch_pod,
    sound,
    with_fetch,
)
from paddock.core.objects import root_claim, root_volume
from paddock.core.pod import PodSettings, server_pod
from paddock.core.replica import replica_of
from support.builders import RTX_4080, bound, deployment, pod_json, record

GIB = 1024**3
ORIGIN = Origin(
    source="hf://org/repo:Q8_0",
    pinned="hf://org/repo@0123456789abcdef/model-Q8_0.gguf",
    key="sha256-aa",
    path="models/sha256-aa/model-Q8_0.gguf",
    files=[],
    bytes=GIB,
)
FETCHER = Fetcher(
    "agent:1", environment={"PADDOCK_FETCH_HUB": "https://hub.example"}, certificates="PEM", limit=5 * GIB
)


def wanted(**model: Any) -> Deployment:
    return deployment(model={"source": ORIGIN.source, "secretRef": {"name": "hub"}, **model})


def orders(of: Deployment) -> list[Order]:
    assert of.spec is not None
    return [Order(ORIGIN, of.spec.model)]


def serving(of: Deployment) -> dict[str, Any]:
    binding, mounted = bound(RTX_4080), cached_file("cache", ORIGIN)
    return with_fetch(
        server_pod(of, 0, record(RTX_4080), binding, mounted, PodSettings("r", "p")), of, orders(of), FETCHER
    )


def pods() -> list[dict[str, Any]]:
    of = wanted()
    return [
        header_pod(of, ORIGIN.source, FETCHER),
        prefetch_pod(of, orders(of), "node1", "cache", FETCHER),
        serving(of),
    ]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


@pytest.mark.parametrize("pod", pods(), ids=["header", "prefetch", "server"])
def test_every_pod_that_fetches_meets_restricted_pod_security(pod: dict[str, Any]) -> None:
    security = pod["spec"]["securityContext"]
    assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert pod["spec"]["automountServiceAccountToken"] is False
    for one in containers(pod):
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
    kinds = {"persistentVolumeClaim", "secret", "downwardAPI", "emptyDir"}
    assert all(set(volume) - {"name"} <= kinds for volume in pod["spec"]["volumes"])


@pytest.mark.parametrize("pod", pods(), ids=["header", "prefetch", "server"])
def test_a_secret_is_a_file_for_what_reaches_out_and_for_nothing_else(pod: dict[str, Any]) -> None:
    having = {
        one["name"]
        for one in containers(pod)
        if any(mount["name"] == "source-secret" for mount in one.get("volumeMounts", ()))
    }
    assert having in ({"inspect"}, {"fetch"})
    (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "source-secret")
    assert volume["secret"] == {"secretName": "hub", "optional": True, "defaultMode": 0o440}
    assert all("valueFrom" not in variable for one in containers(pod) for variable in one.get("env", ()))


@pytest.mark.parametrize("pod", pods(), ids=["header", "prefetch", "server"])
def test_certificates_and_settings_reach_the_program(pod: dict[str, Any]) -> None:
    assert pod["metadata"]["annotations"][Annotation.TRUSTED] == "PEM"
    one = containers(pod)[0]
    environment = {each["name"]: each["value"] for each in one["env"]}
    assert environment["PADDOCK_FETCH_CA_FILE"] == "/etc/paddock/trusted/ca.crt"
    assert environment["PADDOCK_FETCH_HUB"] == "https://hub.example"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void", "a container that names none may see all GPUs"
    assert one["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_server_reads_from_the_cache_what_was_fetched_before() -> None:
    pod = serving(wanted(sha256="0" * 64))
    (fetch,) = pod["spec"]["initContainers"]
    command = " ".join(fetch["command"])
    assert command == (
        "python3 -m paddock.fetch.main get hf://org/repo@0123456789abcdef/model-Q8_0.gguf --cache /model-cache "
        f"--key sha256-aa --credentials /etc/paddock/source --sha256 {'0' * 64} --limit {5 * GIB}"
    )
    server, hold = pod["spec"]["containers"]
    assert server["name"] == "server", "what kubectl logs and the like look at is the first"
    assert hold["command"][3:] == ["hold", "sha256-aa", "--cache", "/model-cache"]
    assert hold["lifecycle"] == server["lifecycle"], "it holds as long as the server drains"
    assert hold["startupProbe"]["httpGet"] == {"path": "/health", "port": server["ports"][0]["containerPort"]}
    assert hold["startupProbe"]["failureThreshold"] > server["startupProbe"]["failureThreshold"]
    assert server["args"][:2] == ["-m", "/model-cache/models/sha256-aa/model-Q8_0.gguf"]
    assert {"name": "model", "mountPath": "/model-cache", "readOnly": True} in server["volumeMounts"]
    assert {"name": "model", "mountPath": "/model-cache"} in fetch["volumeMounts"]
    assert pod["spec"]["volumes"][0] == {"name": "model", "persistentVolumeClaim": {"claimName": "cache"}}
    assert pod["spec"]["securityContext"]["fsGroup"] == 65532, "a fresh folder of the node belongs to root"


def test_a_server_whose_files_are_there_has_their_keeper_but_nothing_that_fetches() -> None:
    of = wanted()
    binding, mounted = bound(RTX_4080), cached_file("cache", ORIGIN)
    pod = server_pod(of, 0, record(RTX_4080), binding, mounted, PodSettings("r", "p"))
    pod = with_fetch(pod, of, orders(of), FETCHER, there=True)
    assert "initContainers" not in pod["spec"]
    assert [one["name"] for one in pod["spec"]["containers"]] == ["server", "hold"]
    assert not [one for one in pod["spec"]["volumes"] if "secret" in one]
    assert pod["spec"]["volumes"][0] == {"name": "model", "persistentVolumeClaim": {"claimName": "cache"}}


@pytest.mark.parametrize(
    ("keys", "sha256", "digests", "there"),
    [
        ({"sha256-aa", "x"}, None, [], True),
        ({"x"}, None, [], False),
        ({"sha256-aa"}, "a" * 64, ["sha256:" + "a" * 64], True),
        ({"sha256-aa"}, "a" * 64, ["sha256:" + "b" * 64], False),
        ({"sha256-aa"}, "a" * 64, [None], False),
        ({"sha256-aa"}, "a" * 64, ["sha256:" + "a" * 64, None], False),
    ],
)
def test_files_are_there_where_content_and_digest_are_known(
    keys: set[str], sha256: str | None, digests: list[str | None], there: bool
) -> None:
    files = [SourceFile(name=f"{number}.gguf", bytes=1, digest=one) for number, one in enumerate(digests)]
    of = wanted(**({"sha256": sha256} if sha256 is not None else {}))
    assert of.spec is not None
    order = Order(ORIGIN.model_copy(update={"files": files}), of.spec.model)
    assert is_there([order], keys) is there
    other = Order(ORIGIN.model_copy(update={"key": "other"}), of.spec.model)
    assert not is_there([order, other], keys), "all of them are needed"


def test_a_source_with_a_signature_is_asked_for_as_the_user_wrote_it() -> None:
    signed = "https://host/x.gguf?Signature=1"
    fetch = serving(deployment(model={"source": signed}))["spec"]["initContainers"][0]
    assert signed in fetch["command"]


def test_a_claim_of_the_user_has_no_limit_but_its_own() -> None:
    pod = serving(deployment(model={"source": ORIGIN.source, "cache": {"claim": "mine"}}))
    command = pod["spec"]["initContainers"][0]["command"]
    assert "--limit" not in command
    assert "--credentials" not in command


def test_a_pod_that_prefetches_goes_to_its_node_and_ends() -> None:
    pod = prefetch_pod(wanted(), orders(wanted()), "node1", "cache", FETCHER)
    (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]}
    assert pod["spec"]["restartPolicy"] == "Never"


def test_what_a_name_stands_for_is_one_source_with_one_secret() -> None:
    names = {
        header_name("a", "hf://o/r:Q4", None),
        header_name("b", "hf://o/r:Q4", None),
        header_name("a", "hf://o/r:Q5", None),
        header_name("a", "hf://o/r:Q4", "token"),
    }
    assert len(names) == 4


def test_the_volume_of_the_cache_can_be_written_to() -> None:
    root = cache_root("/srv/cache")
    volume, claim = root_volume(root, "node1", "a"), root_claim(root, "node1", "a")
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "mountOptions" not in volume["spec"]
    assert volume["spec"]["local"] == {"path": "/srv/cache"}


def test_fetching_ahead_of_need_restarts_nothing() -> None:
    assert revision(wanted()) == revision(wanted(prefetch={"nodeSelector": {"a": "b"}}))
    assert revision(wanted()) != revision(wanted(sha256="0" * 64))


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "models/sha256-aa/../../etc/shadow.gguf"},
        {"path": "/etc/x.gguf"},
        {"path": "models/sha256-bb/x.gguf"},
        {"path": "models/sha256-aa/.."},
        {"pinned": "--help"},
        {"pinned": "file:///etc/x.gguf"},
        {"key": "..", "path": "models/../x.gguf"},
    ],
)
def test_an_origin_that_leads_elsewhere_is_not_believed(changed: dict[str, str]) -> None:
    assert sound(ORIGIN)
    assert not sound(ORIGIN.model_copy(update=changed))


# What its container says


def init(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"phase": "Pending", "initContainerStatuses": [{"name": "fetch", "restartCount": 0, "state": state, **more}]}


def failed(failure: str, message: str = "why", *, retry: bool = False, **more: Any) -> dict[str, Any]:
    line = json.dumps({"event": "failed", "failure": failure, "message": message, "retry": retry})
    log = f'{{"event": "progress"}}\n{line}\n'
    return init({"terminated": {"exitCode": 3, "reason": "Error", "message": log}}, **more)


@pytest.mark.parametrize(
    ("failure", "reason", "lasting"),
    [
        ("Unauthorized", Reason.UNAUTHORIZED, True),
        ("NotFound", Reason.MODEL_NOT_FOUND, True),
        ("Untrusted", Reason.UNTRUSTED, True),
        ("Corrupt", Reason.CORRUPT, True),
        ("OutOfSpace", Reason.OUT_OF_SPACE, False),
        ("Unreachable", Reason.UNREACHABLE, False),
    ],
)
def test_each_failure_is_a_reason_and_those_that_last_give_the_device_back(
    failure: str, reason: Reason, lasting: bool
) -> None:
    found = replica_of(pod_json(wanted(), status=failed(failure)))
    assert found is not None
    assert (found.waiting, found.waiting_message, found.failed) == (reason, "why", lasting)


def test_a_failure_that_may_pass_keeps_its_device() -> None:
    found = replica_of(pod_json(wanted(), status=failed("Corrupt", retry=True)))
    assert found is not None
    assert not found.failed


def test_while_the_kubelet_waits_the_last_failure_is_told() -> None:
    ended = failed("Unreachable", "no answer")["initContainerStatuses"][0]["state"]
    status = init({"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended) | {}
    status["initContainerStatuses"][0]["restartCount"] = 3
    found = fetch_of(status)
    assert found is not None
    assert (found.reason, found.message) == (Reason.UNREACHABLE, "no answer (tried 4 times)")


def test_last_words_that_are_no_json_are_told_as_they_are() -> None:
    found = fetch_of(init({"terminated": {"exitCode": 1, "message": "Traceback\nValueError: x"}}))
    assert found is not None
    assert (found.reason, found.final) == (Reason.FETCH_FAILED, False)
    assert "exited with code 1: ValueError: x" in found.message


def test_a_pod_whose_files_are_there_is_not_fetching() -> None:
    assert fetch_of(init({"terminated": {"exitCode": 0}})) is None
    assert fetch_of({}) is None
    found = fetch_of(init({"running": {}}))
    assert found is not None
    assert found.reason is Reason.FETCHING


def test_a_server_that_lacks_the_keeper_of_its_files_says_so() -> None:
    status = init({"terminated": {"exitCode": 0}})
    hold = {"name": "hold", "restartCount": 1, "started": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    hold["lastState"] = {"terminated": {"exitCode": 1, "message": "boom"}}
    older = {"initContainerStatuses": [*status["initContainerStatuses"], hold]}
    status["containerStatuses"] = [hold, {"name": "server", "restartCount": 0, "started": True}]
    for each in (status, older):
        found = fetch_of(each)
        assert found is not None
        assert (found.reason, found.message) == (Reason.FETCH_FAILED, "it exited with code 1 (tried 2 times): boom")
    hold["started"] = True
    assert fetch_of(status) is None
    assert fetch_of(older) is None


def test_without_a_container_that_fetches_the_keeper_alone_tells_of_the_files() -> None:
    hold: dict[str, Any] = {"name": "hold", "restartCount": 0, "started": True, "state": {"running": {}}}
    assert fetch_of({"containerStatuses": [hold]}) is None
    line = json.dumps({"event": "failed", "failure": "NotFound", "message": "gone", "retry": False})
    ended = {"name": "hold", "restartCount": 0, "state": {"terminated": {"exitCode": 4, "message": line}}}
    found = fetch_of({"containerStatuses": [ended]})
    assert found is not None
    assert (found.reason, found.message, found.final) == (Reason.MODEL_NOT_FOUND, "gone", True)
    waiting = {"name": "hold", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    found = fetch_of({"containerStatuses": [waiting]})
    assert found is not None
    assert (found.reason, found.message, found.final) == (Reason.IMAGE_PULL_FAILED, "no such image", False)


def test_files_that_were_removed_before_the_server_opened_them_are_fetched_by_another_pod() -> None:
    line = json.dumps({"event": "failed", "failure": "NotFound", "message": "the cache has no model", "retry": False})
    hold = {"name": "hold", "restartCount": 0, "state": {"terminated": {"exitCode": 4, "message": line}}}
    server = {"name": "server", "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    server["lastState"] = {"terminated": {"exitCode": 1}}
    status = init({"terminated": {"exitCode": 0}}) | {"containerStatuses": [hold, server]}
    found = replica_of(pod_json(wanted(), status=status))
    assert found is not None
    assert (found.waiting, found.failed) == (Reason.MODEL_NOT_FOUND, True)


def test_progress_is_the_last_line_and_is_whole_only_at_the_end() -> None:
    line = {"event": "progress", "file": "x", "total": 1000, "bytesPerSecond": 125 * 1024 * 1024}
    log = "\n".join(json.dumps(line | {"bytes": n, "percent": n / 10}) for n in (10, 999)) + "\nnoise\n"
    found = progress_in(log)
    assert found is not None
    assert (shown(found).text, shown(found).percent) == ("99%, 125 MiB/s", 99)
    assert progress_in("nothing") is None
