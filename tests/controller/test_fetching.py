"""Models that are fetched, on a real API server: header, placement, progress, failures, prefetch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from paddock.api.answer import SourceAnswer
from paddock.api.fetched import Failed, Origin, Progress, SourceFile
from paddock.controller.remote import KEPT_GOOD, KEPT_LONG, good_for
from support.client import eventually, stays
from support.pretend_agent import card, summary
from support.pretend_kubelet import Behaviour

if TYPE_CHECKING:
    from support.client import JSON
    from support.site import Site

SOURCE = "hf://org/repo:Q8_0"
KEY = "aa11"
FILE = f"/model-cache/models/{KEY}/model-Q8_0.gguf"
ORIGIN = Origin(
    source=SOURCE,
    pinned="hf://org/repo@0123456789abcdef/model-Q8_0.gguf",
    key=KEY,
    path=f"models/{KEY}/model-Q8_0.gguf",
    files=[SourceFile(name="model-Q8_0.gguf", bytes=1024**3, digest="sha256:" + "a" * 64)],
    bytes=1024**3,
    license="apache-2.0",
    quantization="Q8_0",
)
CACHE = {"cache_folder": "/srv/cache", "cache_size": "10Gi"}


def answer(said: SourceAnswer) -> str:
    return f"PADDOCK-HEADER {json.dumps(said.to_dict())}\n"


GOOD = answer(SourceAnswer(origin=ORIGIN, summary=summary()))


def failure(kind: str, message: str = "the server says no", *, retry: bool = False) -> Failed:
    return Failed.model_validate({"failure": kind, "message": message, "retry": retry})


def last_words(kind: str, message: str = "the server says no", *, retry: bool = False) -> str:
    return json.dumps(failure(kind, message, retry=retry).to_dict()) + "\n"


def progress(percent: int) -> str:
    one = Progress(file="x", bytes=percent, total=100, percent=percent, bytes_per_second=125 * 1024**2)
    return json.dumps(one.to_dict()) + "\n"


def fetchers(site: Site) -> list[JSON]:
    return [
        one
        for one in site.all_pods()
        if one["metadata"]["labels"].get("app.kubernetes.io/component") == "model-fetcher"
    ]


def behave(site: Site, **more: Any) -> Behaviour:
    made = Behaviour(summary=GOOD, **more)
    site.kubelet.behave("gemma", made)
    return made


def test_a_source_is_read_then_placed_then_fetched_where_it_is_served(site: Site) -> None:
    site.operator(**CACHE)
    site.node(cached=[])
    behave(site)
    pod = site.serve(model={"source": SOURCE, "secretRef": {"name": "hub"}, "sha256": "a" * 64})
    fetch = pod["spec"]["initContainers"][0]
    assert fetch["command"][3:6] == ["get", ORIGIN.pinned, "--cache"], "the content that was placed is what is fetched"
    assert fetch["command"][fetch["command"].index("--limit") + 1] == str(10 * 1024**3)
    assert pod["spec"]["containers"][0]["args"][:2] == ["-m", FILE]
    claim = pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    bound = eventually(lambda: site.client.do("GET", site.path(claim, "persistentvolumeclaims")))
    assert bound["spec"]["accessModes"] == ["ReadWriteMany"]

    model = site.status()["model"]
    assert model["architecture"] == "llama"
    assert (model["quantization"], model["license"], model["sizeBytes"]) == ("Q8_0", "apache-2.0", 1024**3)
    assert model["digest"] == "sha256:" + "a" * 64
    assert "progress" not in model
    assert [one for one in site.all_pods() if one["metadata"]["name"].startswith("paddock-inspect-")] == []
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 1)


def test_files_of_nodes_and_claims_are_described_too(site: Site) -> None:
    site.operator()
    site.node()
    site.serve()
    model = site.status()["model"]
    assert model["source"] == "file:///models/gemma.gguf"
    assert (model["parameters"], model["contextLength"], model["files"]) == (summary().parameters, 8192, 1)


def test_a_restarted_operator_needs_no_network_for_what_a_cache_has(site: Site) -> None:
    site.operator(**CACHE)
    node = site.node(cached=[])
    behave(site)
    site.serve(model={"source": SOURCE})
    node.agent.headers[FILE] = summary()
    site.plane.cache("node1", KEY)
    eventually(lambda: site.status()["model"]["nodes"] == ["node1"])
    before = site.status()["model"]
    # From now on whoever asked the network would get nothing.
    site.kubelet.behave("gemma", Behaviour(summary=answer(SourceAnswer(failure=failure("Unreachable")))))
    site.operator(**CACHE, resync_seconds=299)
    site.change("gemma", replicas=2, placement={"nodeSelector": {"kubernetes.io/hostname": "node1"}})
    site.wait_for("Available", "True", "Serving")
    assert len(site.pods()) == 2
    assert FILE in node.agent.reads
    assert site.status()["model"] == before, "what was known of the source is kept"


def inspected(site: Site) -> int:
    """Give how often the answer of a pod was taken that reads a header; those of one source have one name."""
    return sum(reads for key, reads in site.kubelet.log_reads.items() if "paddock-inspect" in key)


def test_what_a_namespace_has_read_of_a_commit_is_not_read_again(site: Site) -> None:
    of_commit = f"hf://org/repo@{'1' * 40}/model-Q8_0.gguf"
    origin = ORIGIN.model_copy(update={"source": of_commit, "pinned": of_commit})
    said = answer(SourceAnswer(origin=origin, summary=summary()))
    site.operator(**CACHE)
    node = site.node(devices=[card(0, 80)], cached=[KEY])
    node.agent.headers[FILE] = summary()
    for name in ("gemma", "second", "third"):
        site.kubelet.behave(name, Behaviour(summary=said))
    model = {"source": of_commit, "secretRef": {"name": "hub"}}
    site.serve(model=model)
    before = inspected(site)
    site.client.do("DELETE", site.path("gemma"))
    site.serve("second", model=model)
    assert inspected(site) == before, "the operator remembers it"

    site.operator(**CACHE, resync_seconds=299)
    site.serve("third", model=model)
    assert inspected(site) == before, "another deployment's status tells of it, and the node's cache has it"
    assert FILE in node.agent.reads

    # Whether another Secret may see it, only the source can tell.
    no = SourceAnswer(failure=failure("Unauthorized"))
    site.kubelet.behave("fourth", Behaviour(summary=answer(no)))
    site.apply("fourth", model={"source": of_commit, "secretRef": {"name": "other"}})
    site.wait_for("Accepted", "False", "Unauthorized", "fourth")
    assert inspected(site) == before + 1


def test_what_a_commit_has_is_believed_for_long() -> None:
    assert good_for(SOURCE) == KEPT_GOOD
    assert good_for(f"hf://org/repo@{'1' * 40}/x.gguf") == KEPT_LONG


def test_what_a_branch_has_now_is_asked_for_each_new_deployment(site: Site) -> None:
    site.operator(**CACHE)
    site.node(devices=[card(0, 80)], cached=[KEY])
    behave(site)
    site.serve(model={"source": SOURCE})
    site.operator(**CACHE, resync_seconds=299)
    before = inspected(site)
    site.kubelet.behave("second", Behaviour(summary=GOOD))
    site.serve("second", model={"source": SOURCE})
    assert inspected(site) == before + 1


def test_where_the_node_has_the_files_nothing_is_fetched_and_no_secret_is_mounted(site: Site) -> None:
    site.operator(**CACHE)
    site.node(cached=[KEY])
    behave(site)
    pod = site.serve(model={"source": SOURCE, "secretRef": {"name": "hub"}, "sha256": "a" * 64})
    assert "initContainers" not in pod["spec"]
    assert [one["name"] for one in pod["spec"]["containers"]] == ["server", "hold"]
    assert not [one for one in pod["spec"]["volumes"] if "secret" in one]
    # Nobody has compared the node's file with this digest: the origin does not have it.
    site.change("gemma", model={"sha256": "b" * 64})
    pod = eventually(lambda: next((one for one in site.pods() if "initContainers" in one["spec"]), None))
    assert "b" * 64 in pod["spec"]["initContainers"][0]["command"]


def test_files_that_are_gone_when_the_server_starts_are_fetched_by_another_pod(site: Site) -> None:
    site.operator(**CACHE)
    site.node(cached=[KEY])
    behave(site, files_gone=True)
    site.apply("gemma", model={"source": SOURCE})
    site.wait_for("Available", "True", "Serving", seconds=40)
    (pod,) = site.pods()
    assert pod["spec"]["initContainers"][0]["name"] == "fetch", "though the agent still says that they are there"
    events = site.client.items(f"/api/v1/namespaces/{site.namespace}/events")
    assert [one for one in events if one["reason"] == "ModelNotFound" and "the cache has no model" in one["message"]]


def test_equal_cards_are_chosen_by_who_has_the_file(site: Site) -> None:
    site.operator(**CACHE)
    site.node("node1", cached=[])
    site.node("node2", cached=[KEY])
    behave(site)
    site.serve(model={"source": SOURCE})
    (placed,) = site.status()["placements"]
    assert placed["node"] == "node2"
    assert "whose node has the model file" in placed["reason"]
    assert site.status()["model"]["nodes"] == ["node2"]


def test_a_node_without_a_cache_is_not_used(site: Site) -> None:
    site.operator(**CACHE)
    site.node("node1", devices=[card(0, 16)])
    site.node("node2", devices=[card(0, 12)], cached=[])
    behave(site)
    site.serve(model={"source": SOURCE})
    assert site.status()["placements"][0]["node"] == "node2"


def test_progress_is_told_in_a_column_and_at_most_every_ten_seconds(site: Site) -> None:
    site.operator(**CACHE)
    site.node(cached=[])
    slow = behave(site, fetch_log=progress(7))
    site.apply("gemma", model={"source": SOURCE})
    told = site.wait_for("Available", "False", "Fetching")
    assert told["message"].endswith("its files are fetched: 7%, 125 MiB/s")
    assert site.status()["model"]["progress"] == {"text": "7%, 125 MiB/s", "percent": 7, "bytesPerSecond": 131072000}
    assert site.condition("Progressing")["status"] == "True"
    mark = site.settle()
    slow.fetch_log = progress(8)
    (pod,) = site.pods()
    stays(lambda: not site.plane.written(mark), 5)
    eventually(lambda: site.status()["model"]["progress"]["percent"] == 8, 8)
    assert site.plane.written(mark)["patch paddock.dev/modeldeployments/status"] == 1

    slow.fetch_log = ""
    site.plane.background.loop.call_soon_threadsafe(site.kubelet.look, f"{site.namespace}/{pod['metadata']['name']}")
    site.wait_for("Available", "True", "Serving")
    assert "progress" not in site.status()["model"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("Unauthorized", "Unauthorized"),
        ("NotFound", "ModelNotFound"),
        ("Untrusted", "Untrusted"),
        ("Unreachable", "Unreachable"),
    ],
)
def test_a_source_that_cannot_be_read_is_told_and_tried_later(site: Site, kind: str, reason: str) -> None:
    site.operator(**CACHE)
    site.node(cached=[])
    said = SourceAnswer(failure=failure(kind, "hub.example says 401", retry=kind == "Unreachable"))
    site.kubelet.behave("gemma", Behaviour(summary=answer(said)))
    site.apply("gemma", model={"source": SOURCE})
    assert site.wait_for("Accepted", "False", reason)["message"] == "hub.example says 401"
    assert site.reservations() == {}
    count = len([key for key in site.kubelet.created if "paddock-inspect" in key])
    stays(lambda: len([key for key in site.kubelet.created if "paddock-inspect" in key]) == count, 2)
    # Another Secret is another question, and is asked at once.
    behave(site)
    site.change("gemma", model={"secretRef": {"name": "hub"}})
    site.wait_for("Available", "True", "Serving")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("Unauthorized", "Unauthorized"), ("Corrupt", "Corrupt"), ("NotFound", "ModelNotFound")],
)
def test_a_failure_that_lasts_gives_the_device_back_and_stays_told(site: Site, kind: str, reason: str) -> None:
    site.operator(**CACHE)
    site.node(cached=[])
    broken = behave(site, fetch_failure=last_words(kind, "expected sha256 aa, got bb"))
    site.apply("gemma", model={"source": SOURCE})
    site.wait_for("Placed", "False", reason, seconds=25)
    assert "expected sha256 aa, got bb" in site.condition("Placed")["message"]
    eventually(lambda: not site.reservations() or site.pods())
    broken.fetch_failure = ""
    site.wait_for("Available", "True", "Serving", seconds=40)


@pytest.mark.parametrize("kind", ["Unreachable", "OutOfSpace"])
def test_a_failure_that_may_pass_keeps_pod_and_device(site: Site, kind: str) -> None:
    site.operator(**CACHE)
    site.node(cached=[])
    words = "needs 12 GiB, 3 GiB are free"
    behave(site, fetch_failure=last_words(kind, words, retry=True))
    site.apply("gemma", model={"source": SOURCE})
    assert words in site.wait_for("Available", "False", kind)["message"]
    (pod,) = site.pods()
    assert list(site.reservations()) == [pod["metadata"]["name"]]


def test_without_a_cache_a_claim_is_asked_for_and_used(site: Site) -> None:
    site.operator()
    site.node()
    behave(site)
    site.apply("gemma", model={"source": SOURCE})
    site.wait_for("Accepted", "False", "NoCache")
    site.change("gemma", model={"cache": {"claim": "mine"}})
    site.wait_for("Accepted", "False", "ClaimNotFound")
    claim = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "mine"}, "spec": claim}
    site.client.do("POST", site.path("", "persistentvolumeclaims"), body)
    site.change("gemma", model={"sha256": "a" * 64})
    site.wait_for("Available", "True", "Serving")
    (pod,) = site.pods()
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "mine"}


def test_chosen_nodes_fetch_before_any_replica_is_there(site: Site) -> None:
    site.operator(**CACHE)
    site.node("node1", cached=[], labels={"models": "yes"})
    site.node("node2", cached=[], labels={"models": "yes"})
    site.node("node3", cached=[], labels={"models": "no"})
    site.node("node4", labels={"models": "yes"})
    behave(site)
    site.apply("gemma", replicas=0, model={"source": SOURCE, "prefetch": {"nodeSelector": {"models": "yes"}}})
    seen: set[str] = set()

    def both() -> bool:
        seen.update(pod["spec"].get("nodeName", "") for pod in fetchers(site))
        return {"node1", "node2"} <= seen

    eventually(both)
    eventually(lambda: not fetchers(site), 20)
    site.plane.cache("node1", KEY)
    site.plane.cache("node2", KEY)
    eventually(lambda: site.status()["model"]["nodes"] == ["node1", "node2"])
    assert seen <= {"", "node1", "node2"}
    site.change("gemma", replicas=1)
    site.wait_for("Available", "True", "Serving")
    first = site.pods()[0]["metadata"]["uid"]
    site.change("gemma", model={"prefetch": {"nodeSelector": {"models": "other"}}})
    site.settle()
    assert [one["metadata"]["uid"] for one in site.pods()] == [first], "what runs stays as it is"


def test_a_fetch_ahead_of_need_that_fails_is_told_and_not_repeated_at_once(site: Site) -> None:
    site.operator(**CACHE)
    site.node(cached=[])
    behave(site, fetch_failure=last_words("OutOfSpace", "needs 12 GiB, 3 GiB are free"))
    site.apply("gemma", replicas=0, model={"source": SOURCE, "prefetch": {}})

    def told() -> list[str]:
        events = site.client.items(f"/api/v1/namespaces/{site.namespace}/events")
        return [one["message"] for one in events if one["reason"] == "OutOfSpace"]

    assert "fetching ahead of need to node1: needs 12 GiB" in eventually(told)[0]
    count = sum("paddock-fetch" in key for key in site.kubelet.created)
    stays(lambda: sum("paddock-fetch" in key for key in site.kubelet.created) == count, 3)
