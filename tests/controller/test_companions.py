"""Projector, adapters and draft model of a deployment, on a real API server: read, reserved, fetched, served, told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from paddock.api.answer import SourceAnswer
from paddock.api.fetched import Failed, Origin
from paddock.api.report import CompanionSummary, HeaderAnswer, HeaderSummary, TensorGroup
from support.client import eventually, stays
from support.pretend_agent import card, summary
from support.pretend_kubelet import Behaviour

if TYPE_CHECKING:
    from support.site import Site

GIB = 1024**3
MODEL, PROJECTOR, DRAFT = "hf://org/repo/model.gguf", "hf://org/repo/mmproj.gguf", "hf://org/small/draft.gguf"
CACHE = {"cache_folder": "/srv/cache", "cache_size": "100Gi"}
NOTHING = TensorGroup(bytes=0, count=0)


def companion(kind: str, gib: float) -> HeaderSummary:
    """Give the summary of a projector or an adapter of this size."""
    size = TensorGroup(bytes=int(gib * GIB), count=10)
    told = CompanionSummary.model_validate({"kind": kind, "device": size, "host": NOTHING})
    return summary(0.5).model_copy(update={"companion": told, "file_bytes": size.bytes})


def answer(source: str, key: str, found: HeaderSummary) -> str:
    """Give what a pod prints that has read a header."""
    name = source.rpartition("/")[2]
    pinned = source.replace("/repo/", "/repo@0123456789abcdef/").replace("/small/", "/small@0123456789abcdef/")
    origin = Origin(
        source=source, pinned=pinned, key=key, path=f"models/{key}/{name}", files=[], bytes=found.file_bytes
    )
    return f"PADDOCK-HEADER {json.dumps(SourceAnswer(origin=origin, summary=found).to_dict())}\n"


def behave(site: Site, **more: str) -> None:
    summaries = {
        MODEL: answer(MODEL, "aa", summary(2)),
        PROJECTOR: answer(PROJECTOR, "bb", companion("Projector", 1)),
        DRAFT: answer(DRAFT, "cc", summary(0.5)),
        **more,
    }
    site.kubelet.behave("gemma", Behaviour(summaries=summaries))


def test_all_files_are_read_reserved_fetched_and_named(site: Site) -> None:
    site.operator(**CACHE)
    site.node(devices=[card(0, 24)], cached=[])
    behave(site)
    plain = site.serve(model={"source": MODEL})
    (alone,) = site.reservations().values()
    assert "--mmproj" not in plain["spec"]["containers"][0]["args"]
    site.change("gemma", model={"projector": {"source": PROJECTOR, "secretRef": {"name": "hub"}}})
    site.change("gemma", model={"draft": {"source": DRAFT}})

    def served() -> bool:
        (pod,) = site.pods() or [plain]
        args = pod["spec"]["containers"][0]["args"]
        return {"--mmproj", "-md"} <= set(args) and site.condition("Available")["status"] == "True"

    eventually(served, 40)
    (pod,) = site.pods()
    args = pod["spec"]["containers"][0]["args"]
    assert args[args.index("--mmproj") + 1] == "/model-cache/models/bb/mmproj.gguf"
    assert args[args.index("-md") + 1 : args.index("-md") + 4] == [
        "/model-cache/models/cc/draft.gguf",
        "-devd",
        "CUDA0",
    ]
    assert site.reservations()[pod["metadata"]["name"]] >= alone + int(1.4 * GIB)
    fetch = pod["spec"]["initContainers"][0]["command"]
    asked = [json.loads(fetch[number + 1])["key"] for number, word in enumerate(fetch) if word == "--beside"]
    assert asked == ["bb", "cc"]
    told = site.status()["model"]
    assert [(one["kind"], one["source"]) for one in told["companions"]] == [("Projector", PROJECTOR), ("Draft", DRAFT)]
    assert told["companions"][1]["pinned"] == DRAFT.replace("small", "small@0123456789abcdef")

    site.plane.cache("node1", "aa")
    stays(lambda: not site.status()["model"].get("nodes"), 1)
    site.plane.cache("node1", "aa", "bb", "cc")
    eventually(lambda: site.status()["model"]["nodes"] == ["node1"])


def test_files_of_nodes_serve_beside_a_model_where_a_node_has_both(site: Site) -> None:
    site.operator()
    first, second = site.node("node1"), site.node("node2", devices=[card(0, 12)])
    first.agent.headers["/models/m.gguf"] = second.agent.headers["/models/m.gguf"] = summary()
    second.agent.headers["/models/a.gguf"] = companion("Adapter", 0.1)
    pod = site.serve(
        model={
            "source": "file:///models/m.gguf",
            "loraAdapters": [{"source": "file:///models/a.gguf", "scale": 0.25}],
        }
    )
    assert site.status()["placements"][0]["node"] == "node2"
    args = pod["spec"]["containers"][0]["args"]
    assert args[args.index("--lora-scaled") + 1] == "/models/a.gguf:0.25"
    claims = [one for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
    assert len(claims) == 1, "one model root is mounted once"
    assert "initContainers" not in pod["spec"]


@pytest.mark.parametrize(
    ("model", "reason", "words"),
    [
        ({"source": PROJECTOR}, "ModelUnsupported", "the file is a projector, no model"),
        ({"source": MODEL, "projector": {"source": DRAFT}}, "ModelUnsupported", "projector: the file is a model"),
        ({"source": MODEL, "draft": {"source": PROJECTOR}}, "ModelUnsupported", "draft model: the file is a projector"),
        ({"source": MODEL, "draft": {"source": "hf://org/none/x.gguf"}}, "ModelNotFound", "draft model: no such file"),
        ({"source": MODEL, "draft": {"source": "file:///etc/x.gguf"}}, "SourceRefused", "draft model: /etc/x.gguf is"),
    ],
)
def test_what_cannot_serve_beside_a_model_is_told(
    site: Site, model: dict[str, object], reason: str, words: str
) -> None:
    site.operator(**CACHE)
    site.node(cached=[])
    failed = SourceAnswer(failure=Failed(failure="NotFound", message="no such file", retry=False))
    behave(site, **{"hf://org/none/x.gguf": f"PADDOCK-HEADER {json.dumps(failed.to_dict())}\n"})
    site.apply("gemma", model=model)
    assert words in site.wait_for("Accepted", "False", reason)["message"]
    assert site.reservations() == {}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"model": {"source": MODEL, "draft": {"source": DRAFT}}, "serving": {"mode": "Embedding"}}, "mode Chat"),
        ({"model": {"source": MODEL, "draft": {"source": "x.gguf"}}}, "source must be"),
        (
            {"model": {"source": MODEL, "projector": {"source": "file:///a.gguf", "sha256": "a" * 64}}},
            "secretRef and sha256",
        ),
        ({"model": {"source": MODEL, "loraAdapters": [{"source": DRAFT, "scale": 1000}]}}, "100"),
    ],
)
def test_the_api_server_refuses_what_makes_no_sense(site: Site, spec: dict[str, object], words: str) -> None:
    answer = site.client.call("POST", site.path(), site.body("gemma", **spec))
    assert answer.status == 422, answer
    assert words in answer.body["message"]


IMAGE = "image://ghcr.io/org/models:1/gemma.gguf"


def test_a_model_in_an_image_is_read_and_served_where_that_is_switched_on(site: Site) -> None:
    site.operator()
    site.node()
    site.kubelet.behave(
        "gemma", Behaviour(summary=f"PADDOCK-HEADER {json.dumps(HeaderAnswer(summary=summary()).to_dict())}\n")
    )
    site.apply("gemma", model={"source": IMAGE})
    refused = site.wait_for("Accepted", "False", "SourceRefused")
    assert "imageVolumes" in refused["message"]
    site.operator(image_volumes=True)
    site.wait_for("Available", "True", "Serving")
    (pod,) = site.pods()
    assert pod["spec"]["volumes"][0]["image"]["reference"] == "ghcr.io/org/models:1"
    assert site.status()["model"]["source"] == IMAGE
