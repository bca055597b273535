"""Between what is read and what is done about it, something else happens, or a request fails. Played in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, Mock

import pytest

from paddock.api.answer import SourceAnswer
from paddock.api.disruption import Promise
from paddock.api.fetched import Origin
from paddock.api.gpu import Reservation
from paddock.api.report import HeaderAnswer, NodeReport
from paddock.controller import operate as operate_module
from paddock.controller import serve as serve_module
from paddock.controller.agents import Agents
from paddock.controller.cluster import GPUS, Cluster, ClusterError, namespaced
from paddock.controller.controller import Controller
from paddock.controller.credentials import Credentials
from paddock.controller.found import Found
from paddock.controller.leader import Leader
from paddock.controller.models import Models
from paddock.controller.moves import Moves
from paddock.controller.parts import Parts
from paddock.controller.proof import Prover
from paddock.controller.reader import MARK
from paddock.controller.reconcile import Reconciler
from paddock.controller.remote import Remote
from paddock.controller.services import Services
from paddock.controller.settings import Settings
from paddock.controller.store import Replicas, node_of
from paddock.core.deployment import deployment_of
from paddock.core.placement import place
from paddock.core.plan import Plan, Wanted
from paddock.core.request import request_of
from paddock.core.rules import Leave, Rule
from paddock.core.source import parse_any
from support.builders import GIB, NOW, READY, body, deployment, device, gpu_json, pod_json, record, replica
from support.memory_cluster import InMemory
from support.pretend_agent import summary

if TYPE_CHECKING:
    from paddock.api.modeldeployment import ModelDeploymentSpec

JSON = dict[str, Any]
SETTINGS = Settings.from_environment({"PADDOCK_NAMESPACE": "p", "PADDOCK_POD_NAME": "o"})
CARD, OTHER = device("node1-a", pci_id="0000:0a:00.0"), device("node1-b", pci_id="0000:0b:00.0")
PODS = namespaced("pods", "default")


def operator() -> tuple[InMemory, Controller]:
    """Give an operator that knows two GPUs and no node."""
    cluster = InMemory()
    made = Controller(cluster, SETTINGS)
    for one in (CARD, OTHER):
        made.ledger.apply(cluster.put_there(GPUS, gpu_json(one)))
    return cluster, made


def refuse() -> None:
    raise ClusterError(500, "InternalError", "etcd has no leader")


async def book(made: Controller, pod: str, gpu: str = CARD.gpu, uid: str = "u") -> None:
    made.ledger.assume(gpu, Reservation(pod=pod, deployment=pod.rpartition("-")[0], uid=uid, bytes=GIB, since=NOW))
    await made.ledger.commit(gpu, pod)


def stored(cluster: InMemory, what: str = "reservations", gpu: str = CARD.gpu) -> list[str]:
    return [one["pod"] for one in cluster.objects[f"{GPUS}/{gpu}"]["status"].get(what, ())]


# -- the books ---------------------------------------------------------------------------------------------------------


async def test_a_reservation_whose_end_could_not_be_written_ends_with_the_next_try() -> None:
    cluster, made = operator()
    for gpu in (CARD.gpu, OTHER.gpu):
        await book(made, "default/a-0", gpu)
    cluster.before["/status"] = [refuse]
    with pytest.raises(ClusterError):
        await made.ledger.release("default/a-0")
    assert [one.pod for _, one in made.ledger.reservations()] == ["default/a-0"] * 2, "they are still there"
    await made.ledger.release("default/a-0")
    assert stored(cluster) == stored(cluster, gpu=OTHER.gpu) == []


async def test_a_promise_whose_end_could_not_be_written_ends_with_the_next_try() -> None:
    cluster, made = operator()
    promise = Promise(pod="default/a-0", deployment="default/a", uid="u", bytes=GIB, since=NOW, priority=0, message="")
    await made.ledger.promise(CARD.gpu, promise)
    assert stored(cluster, "promises") == ["default/a-0"]
    cluster.before["/status"] = [refuse]
    with pytest.raises(ClusterError):
        await made.ledger.withdraw("default/a-0")
    assert made.ledger.promised == {"default/a-0"}, "whoever tidies up must find it"
    await made.ledger.withdraw("default/a-0")
    assert stored(cluster, "promises") == []


async def test_an_orphan_that_cannot_be_taken_back_keeps_no_other_from_it_and_its_turn_comes_soon() -> None:
    cluster, made = operator()
    for number, gpu in enumerate((CARD.gpu, OTHER.gpu)):
        await book(made, f"default/a-{number}", gpu)
    cluster.before[f"{CARD.gpu}/status"] = [refuse]
    await made._sweeps.orphans(0.0)
    assert (stored(cluster), stored(cluster, gpu=OTHER.gpu)) == (["default/a-0"], [])
    await made._sweeps.orphans(0.0)
    assert stored(cluster) == []


async def test_what_a_later_deployment_of_the_name_has_booked_is_not_what_the_former_left() -> None:
    """Another operator knows of it already, and has not made its pod yet."""
    cluster, made = operator()
    gone = body("a", uid="old")
    made.world.deployments.apply("ADDED", gone)
    made.world.deployments.apply("DELETED", gone)
    await book(made, "default/a-0", uid="old")
    await book(made, "default/a-1", uid="new")
    await made._sweeps.left_by("default/a")
    assert stored(cluster) == ["default/a-1"]


async def test_a_node_that_comes_back_while_it_is_asked_for_keeps_its_gpus() -> None:
    """What their owner said of them would be gone."""
    cluster, made = operator()

    def back() -> None:
        made.world.nodes["node1"] = node_of({"metadata": {"name": "node1"}})

    cluster.after["/api/v1/nodes"] = [back]
    await made._health.take("node1", None)
    assert f"{GPUS}/{CARD.gpu}" in cluster.objects
    del made.world.nodes["node1"]
    cluster.after[CARD.gpu] = [back]
    await made._health.take("node1", None)
    assert [name for name in (CARD.gpu, OTHER.gpu) if f"{GPUS}/{name}" in cluster.objects] == [OTHER.gpu]


async def test_a_gpu_that_somebody_removes_while_those_of_a_gone_node_go_is_no_error() -> None:
    cluster, made = operator()
    uid = cluster.objects[f"{GPUS}/{OTHER.gpu}"]["metadata"]["uid"]
    cluster.after[CARD.gpu] = [lambda: made.ledger.forget(OTHER.gpu, uid)]
    await made._health.take("node1", None)
    assert made.ledger.stored() == {}


async def test_a_gpu_that_is_made_anew_while_its_former_object_goes_is_known() -> None:
    cluster, made = operator()

    def again() -> None:
        made.ledger.apply(cluster.put_there(GPUS, gpu_json(CARD)))

    cluster.after[CARD.gpu] = [again]
    await made.ledger.delete(CARD.gpu)
    made.ledger.apply(cluster.objects[f"{GPUS}/{CARD.gpu}"])
    assert CARD.gpu in made.ledger.stored()


def test_a_gpu_whose_status_is_of_another_version_is_found_out_anew() -> None:
    cluster, made = operator()
    strange = gpu_json(CARD)
    strange["status"]["type"] = "Quantum"
    made.ledger.apply(cluster.put_there(GPUS, {**strange, "metadata": {**strange["metadata"], "name": "node1-c"}}))
    assert "node1-c" not in made.ledger.stored()
    assert made.ledger.bare() == [("node1-c", "node1")]


def test_a_pod_whose_label_somebody_changed_is_no_trouble_for_its_former_deployment() -> None:
    replicas, of = Replicas(), deployment()
    pod = pod_json(of, resourceVersion="1")
    replicas.apply("ADDED", pod)
    pod["metadata"] |= {"resourceVersion": "2", "labels": {**pod["metadata"]["labels"]}}
    pod["metadata"]["labels"]["paddock.dev/model-deployment"] = "other"
    replicas.apply("MODIFIED", pod)
    assert [len(replicas.of(f"default/{name}")) for name in (of.name, "other")] == [0, 1]
    replicas.apply("DELETED", pod)
    assert [len(replicas.of(f"default/{name}")) for name in (of.name, "other")] == [0, 0]


def test_a_pod_that_goes_while_its_record_is_doubted_does_not_come_back() -> None:
    replicas, of = Replicas(), deployment()
    pod = pod_json(of, resourceVersion="1")
    replicas.apply("ADDED", pod)
    (doubted,) = replicas.of("default/gemma")
    replicas.apply("DELETED", pod)
    replicas.distrust(doubted, "it says otherwise")
    assert replicas.values() == []


# -- what pods read ----------------------------------------------------------------------------------------------------


async def test_two_who_take_the_answer_of_one_inspector_pod_both_have_it() -> None:
    """The quicker one removes the pod, and with it the log."""
    cluster = InMemory()
    claim = "/api/v1/namespaces/default/persistentvolumeclaims"
    cluster.put_there(claim, {"metadata": {"name": "c"}, "spec": {}})
    models = Models(cluster, Mock(), SETTINGS)
    one, two = (deployment(name, model={"source": "pvc://c/m.gguf"}) for name in ("one", "two"))
    source = parse_any("pvc://c/m.gguf", ())
    assert not isinstance(source, str)
    await models._find(one, source, ())
    (pod,) = [path for path in cluster.objects if path.startswith(PODS)]
    cluster.objects[pod]["status"] = {"phase": "Succeeded"}
    cluster.logs[pod] = MARK + HeaderAnswer(summary=summary()).model_dump_json(by_alias=True)
    late = asyncio.Event()
    read = models._answer

    async def slowly(*args: Any) -> HeaderAnswer:
        if not late.is_set():
            late.set()
            return await read(*args)
        await asyncio.sleep(0.02)
        return await read(*args)

    models._answer = slowly  # type: ignore[method-assign,assignment]
    found = await asyncio.gather(models._find(one, source, ()), models._find(two, source, ()))
    assert [each.summary is not None for each in found] == [True, True]


async def test_two_who_take_the_answer_of_one_pod_that_read_afar_both_have_it() -> None:
    cluster = InMemory()
    remote = Remote(cluster, Mock(), SETTINGS, AsyncMock())
    pinned = "https://example.org/m.gguf"
    origin = Origin(source=pinned, pinned=pinned, key="ab12", path="models/ab12/m.gguf", files=[], bytes=1)
    of = deployment(model={"source": pinned})
    await remote._read(of, pinned, Found(), 120.0)
    (pod,) = [path for path in cluster.objects if path.startswith(PODS)]
    cluster.objects[pod]["status"] = {"phase": "Succeeded"}
    meta = cluster.objects[pod]
    answer = SourceAnswer(origin=origin, summary=summary())
    remote._answer = AsyncMock(side_effect=[answer, SourceAnswer()])  # type: ignore[method-assign]
    first = await remote._taken(pod, meta, pinned)
    second = await remote._taken(pod, meta, pinned)
    assert first is not None
    assert second is first, "the log is gone, the answer is not"


async def test_what_a_node_said_before_it_went_is_not_kept_for_the_next_of_its_name() -> None:
    agents = Mock()
    models = Models(InMemory(), agents, SETTINGS)

    async def header(*_: str) -> HeaderAnswer:
        models.forget_node("node1")
        return HeaderAnswer(summary=summary())

    agents.header = header
    await models._ask("node1", "/models/m.gguf")
    assert models._files == {}


# -- those who have to leave -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("meanwhile", ["nothing", "deleted", "changed"])
async def test_nobody_is_asked_to_leave_for_one_that_is_gone_or_asks_otherwise_by_then(meanwhile: str) -> None:
    """While others' files were looked for, its owner deleted or changed it."""
    cluster, made = operator()
    made.world.nodes["node1"] = node_of({"metadata": {"name": "node1"}, "status": {"conditions": [READY]}})
    victim, waiting = body("low", uid="low", model={"source": "pvc://c/m.gguf"}), body("high", uid="high", priority=5)
    for one in (victim, waiting):
        made.world.deployments.apply("ADDED", one)
    of, asks = deployment_of(victim), deployment_of(waiting)
    there = replica(of, record=record(CARD, need=10 * GIB))
    made.world.replicas._all[there.key] = there
    made.world.replicas._of[of.key] = {there.key}
    made.ledger.assume(CARD.gpu, Reservation(pod=there.key, deployment=of.key, uid=of.uid, bytes=10 * GIB, since=NOW))
    await made.ledger.commit(CARD.gpu, there.key)
    rule = Rule("r", disruption=Leave(moves=True, eviction=True, interval=0, per_minute=100))
    made.world.rules["r"] = rule
    models = Mock()

    async def reach(*_: object) -> Found:
        if meanwhile == "deleted":
            made.world.deployments.apply("DELETED", waiting)
        elif meanwhile == "changed":
            changed = {**waiting, "metadata": {**waiting["metadata"], "generation": 2, "resourceVersion": "9"}}
            made.world.deployments.apply("MODIFIED", changed)
        return Found(file_nodes=frozenset({"node1"}))

    models.reach = reach
    parts = Parts(made.ledger, models, Mock(), Mock(), Mock(), Mock(), Mock(), lambda: None)
    moves = Moves(SETTINGS, made.world, parts, lambda _key, _after: None)
    assert asks.spec is not None
    spec: ModelDeploymentSpec = asks.spec
    request = request_of(spec, 8 * GIB, 0, 0, (rule,))
    only = made.ledger.fleet(made.world.nodes).with_devices(gone=[OTHER.gpu])
    await moves.make_room(asks, "default/high-0", request, lambda: (only, place(request, only)))
    assert bool(stored(cluster, "promises")) == (meanwhile == "nothing")


# -- a look at one deployment ------------------------------------------------------------------------------------------


def reconciler(made: Controller) -> Reconciler:
    parts = Parts(made.ledger, Mock(), Mock(), Mock(), made._health, Mock(), Mock(), lambda: None)
    return Reconciler(made.cluster, SETTINGS, made.world, parts, lambda _key, _after: None, lambda _: False)


async def test_a_pod_that_goes_while_anothers_reservation_is_put_back_is_not_booked_for() -> None:
    cluster, made = operator()
    of = deployment(replicas=2)
    both = [replica(of, number, record=record(CARD)) for number in range(2)]
    made.world.replicas._all |= {one.key: one for one in both}
    made.world.replicas._of[of.key] = {one.key for one in both}
    cluster.after["/status"] = [lambda: made.pod_gone(both[1])]
    await reconciler(made)._records.restore(of)
    assert stored(cluster) == [both[0].key]


@pytest.mark.parametrize("change", ["nothing", "deleted", "changed", "leaves"])
async def test_no_pod_is_made_for_a_spec_that_is_not_any_more(change: str) -> None:
    """While the header was read its owner has deleted or changed it."""
    _, made = operator()
    there = body(uid="u")
    made.world.deployments.apply("ADDED", there)
    known = made.world.deployments.get("default/gemma")
    assert known is not None
    meta = {**there["metadata"], "resourceVersion": "9"}
    if change == "deleted":
        made.world.deployments.apply("DELETED", there)
    elif change == "changed":
        made.world.deployments.apply("MODIFIED", {**there, "metadata": {**meta, "generation": 2}})
    elif change == "leaves":
        made.world.deployments.apply("MODIFIED", {**there, "metadata": {**meta, "deletionTimestamp": NOW}})
    look = reconciler(made)
    started = look._start = AsyncMock(return_value=None)  # type: ignore[method-assign]
    await look._fill(known, Plan(wanted=(Wanted(0),)), Mock(open=False))
    assert started.await_count == (change == "nothing")


# -- services and evidence ---------------------------------------------------------------------------------------------


def test_a_service_that_is_made_while_all_are_listed_is_not_missed() -> None:
    services = Services(InMemory(), lambda _key, _after: None)
    before = services.made([deployment("a")])
    assert services.miss(set(), before) == []
    has = deployment_of({**body("a"), "status": {"endpoint": "http://a"}})
    assert services.miss(set(), services.made([has])) == ["default/a"]


async def test_what_could_not_be_learned_of_a_server_is_learned_at_the_next_look() -> None:
    parts = Mock()
    parts.ledger.learn = AsyncMock(side_effect=[ClusterError(500, "", ""), None])
    parts.health.witnesses.bytes_of.return_value = 3 * GIB
    prover = Prover(InMemory(), Replicas(), parts, lambda _key, _after: None)
    one = replica(deployment(), record=record(CARD, device_buffers=2 * GIB))
    with pytest.raises(ClusterError):
        await prover._teach(one)
    await prover._teach(one)
    assert parts.ledger.learn.await_count == 2


# -- what must not end unseen ------------------------------------------------------------------------------------------


async def test_background_work_with_a_mistake_in_it_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.controller.controller.POSITION_PAUSE", 0.0)
    _, made = operator()
    work = AsyncMock(side_effect=[ValueError("a mistake"), None])
    await made._keep_up(work)
    assert (work.await_count, made.errors) == (2, {"Bug": 1})


async def test_a_step_that_fails_for_ever_keeps_nobody_from_reading_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the operator would be unhealthy, and be restarted again and again."""
    monkeypatch.setattr("paddock.controller.controller.FIRST_RESYNCS", (0.0, 0.0))
    _, made = operator()
    listed = asyncio.Event()
    made.settings = SETTINGS.model_copy(update={"resync_seconds": 0.0})
    made._sweeps.orphans = AsyncMock(side_effect=ValueError("a mistake"))  # type: ignore[method-assign]
    made._list_all = AsyncMock(side_effect=listed.set)  # type: ignore[method-assign]
    resync = asyncio.create_task(made._resync())
    await asyncio.wait_for(listed.wait(), 10)
    resync.cancel()
    await asyncio.wait({resync})


async def test_an_agent_whose_report_is_stumbled_over_is_asked_again() -> None:
    heard = asyncio.Event()
    told = AsyncMock(side_effect=[ValueError("a mistake"), None])

    async def take(*_: object) -> None:
        await told()
        heard.set()

    agents = Agents(Credentials("", "t"), 1, 1.0, take, AsyncMock())
    report = NodeReport.model_validate(REPORT).model_dump_json(by_alias=True).encode()

    async def get(*_: object) -> tuple[bytes, str]:
        await asyncio.sleep(0.005)
        return report, "1"

    agents._get = get  # type: ignore[method-assign,assignment]
    agents.apply("ADDED", agent("a"))
    await asyncio.wait_for(heard.wait(), 10)
    await agents.close()


@pytest.mark.parametrize("also", [(), ("b",)])
async def test_a_node_is_silent_when_its_agents_are_gone_and_the_next_never_answers(also: tuple[str, ...]) -> None:
    silent, heard = asyncio.Event(), asyncio.Event()

    async def on_silent(*_: str) -> None:
        silent.set()

    async def on_report(*_: object) -> None:
        if len(agents._reports["node1"]) == 1 + len(also):
            heard.set()

    agents = Agents(Credentials("", "t"), 1, 0.05, on_report, on_silent)
    agents.nodes_known = {"node1"}

    async def get(url: str, *_: object) -> tuple[bytes, str]:
        await asyncio.sleep(0.005)
        if "9" in url.partition("//")[2].partition(":")[0]:
            await asyncio.Event().wait()
        return NodeReport.model_validate(REPORT).model_dump_json(by_alias=True).encode(), '"1"'

    agents._get = get  # type: ignore[method-assign,assignment]
    for name in ("a", *also):
        agents.apply("ADDED", agent(name))
    await asyncio.wait_for(heard.wait(), 10)
    agents.apply("ADDED", agent("next", "127.0.0.9"))
    for name in ("a", *also):
        agents.apply("DELETED", agent(name))
    await asyncio.wait_for(silent.wait(), 10)
    await agents.close()


async def test_a_lease_that_cannot_be_renewed_by_mistake_is_lost() -> None:
    leader = Leader(InMemory(), "p", "o", 0.1)
    leader._try = AsyncMock(side_effect=ValueError("a mistake"))  # type: ignore[method-assign]
    await asyncio.wait_for(leader.hold(), 10)
    assert leader.lost.is_set()


async def test_nothing_is_done_when_the_lease_could_not_be_taken_by_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    acted = AsyncMock(return_value=0)
    cluster = InMemory()
    cluster.close = AsyncMock()  # type: ignore[method-assign]
    monkeypatch.setattr(Cluster, "connect", AsyncMock(return_value=cluster))
    monkeypatch.setattr(Leader, "acquire", AsyncMock(side_effect=ValueError("a mistake")))
    monkeypatch.setattr(operate_module, "serve", acted)
    monkeypatch.setattr(operate_module, "stop_on_signals", lambda _: None)
    settings = SETTINGS.model_copy(update={"leader_election": True, "listen": ""})
    with pytest.raises(ValueError, match="a mistake"):
        await operate_module.operate(settings)
    assert not acted.await_count


async def test_what_ends_the_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "_act", AsyncMock(side_effect=ValueError("a mistake")))
    stop, lost = asyncio.Event(), asyncio.Event()
    with pytest.raises(ValueError, match="a mistake"):
        await serve_module.serve(InMemory(), SETTINGS, serve_module.Face(), stop, lost, AsyncMock())


async def test_a_token_that_cannot_be_read_for_a_moment_is_as_a_server_that_does_not_answer() -> None:
    found = Mock()
    found.host, found.verify_ssl = "https://x", False
    found.auth_settings = AsyncMock(side_effect=FileNotFoundError("token"))
    cluster = InMemory()
    cluster._configuration = found
    with pytest.raises(ClusterError, match="token"):
        await Cluster.request(cluster, "GET", "/api/v1/nodes")


REPORT: JSON = {"node": "node1", "devices": [], "faults": [], "generation": 1}


def agent(name: str, address: str = "127.0.0.1") -> JSON:
    meta = {"namespace": "p", "name": name, "uid": f"uid-of-{name}"}
    return {"metadata": meta, "spec": {"nodeName": "node1"}, "status": {"podIP": address, "phase": "Running"}}
