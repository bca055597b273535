"""The device plugin, against a kubelet in this process: offers, health, what containers get, restarts on both sides."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path

import grpc
import pytest
from grpc import aio

from paddock.agent import plugin
from paddock.agent.devicenodes import Host
from paddock.agent.offers import OFFERS, SILENT, STATE, Offers, read_offers
from paddock.agent.plugin import Plugin
from paddock.api.report import DeviceTrouble, GgmlType, ListedDevice
from paddock.core.offers import Offer, cdi_names, offers_of, resource_of
from support.fake_kubelet import FakeKubelet

GIB = 1024**3
UUID = "GPU-5f1c9a2e-0000-4000-8000-00000000abcd"
NVIDIA = ListedDevice(
    name="CUDA0", backend="CUDA", type=GgmlType.GPU, raw_index=0, memory_total=6 * GIB, pci_id="0000:41:00.0", uuid=UUID
)
AMD = ListedDevice(
    name="ROCm0", backend="ROCm", type=GgmlType.GPU, raw_index=0, memory_total=GIB, pci_id="0000:03:00.0"
)
INTEL = ListedDevice(
    name="Vulkan0", backend="Vulkan", type=GgmlType.IGPU, raw_index=0, memory_total=2 * GIB, pci_id="0000:00:02.0"
)
OF_NVIDIA = "gpu.paddock.dev/uuid-5f1c9a2e-0000-4000-8000-00000000abcd"
OF_AMD = "gpu.paddock.dev/pci-0000-03-00-0"
OF_INTEL = "gpu.paddock.dev/pci-0000-00-02-0"


class Place:
    """The folders of one node."""

    def __init__(self, folder: Path) -> None:
        self.shared, self.kubelet, self.cdi = folder / "shared", folder / "kubelet", folder / "cdi"
        self.sys, self.dev = folder / "sys", folder / "dev"
        for each in (self.shared, self.kubelet, self.cdi, self.dev / "dri", self.sys / "class" / "kfd"):
            each.mkdir(parents=True)

    def host(self) -> Host:
        return Host(self.sys, self.dev, (self.cdi,))

    def nodes(self, pci_id: str, *names: str, mode: int = 0o660, group: int = 0) -> None:
        """Have a card with these device nodes."""
        folder = self.sys / "bus" / "pci" / "devices" / pci_id / "drm"
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():
            left.rmdir()
        for name in names:
            (folder / name).mkdir()
            node = self.dev / "dri" / name
            node.touch()
            node.chmod(mode)
            if group:
                os.chown(node, -1, group)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def until(true: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    for _ in range(600):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(what)


@asynccontextmanager
async def plugged(place: Place) -> AsyncIterator[FakeKubelet]:
    """Run a kubelet and the plugin; gives the kubelet."""
    kubelet = FakeKubelet(place.kubelet)
    await kubelet.start()
    running = asyncio.create_task(Plugin(place.shared, place.kubelet, place.host()).run())
    try:
        yield kubelet
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await kubelet.stop()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "PAUSE", 0.05)
    monkeypatch.setattr(plugin, "ATTACH", 0.5)
    monkeypatch.setattr(plugin, "BEAT", 0.1)


# --- what is offered --------------------------------------------------------------------------------------------------


def test_resources_are_named_by_the_most_lasting_identity() -> None:
    assert [resource_of(one) for one in (NVIDIA, AMD, INTEL)] == [OF_NVIDIA, OF_AMD, OF_INTEL]
    assert resource_of(AMD.model_copy(update={"pci_id": None})) is None
    odd = resource_of(NVIDIA.model_copy(update={"uuid": f"GPU-{'Ä_x' * 60}"}))
    assert odd is not None
    assert len(odd.partition("/")[2]) <= 63


def test_every_whole_gpu_is_offered_once() -> None:
    assert offers_of([NVIDIA, AMD, INTEL]) == (
        Offer(OF_INTEL, 8, "0000:00:02.0"),
        Offer(OF_AMD, 4, "0000:03:00.0", compute=True),
        Offer(OF_NVIDIA, 24, "0000:41:00.0", UUID),
    )
    twin = NVIDIA.model_copy(update={"name": "Vulkan1", "backend": "Vulkan", "duplicate_of": "CUDA0"})
    assert len(offers_of([NVIDIA, twin])) == 1
    virtual = [NVIDIA.model_copy(update={"pci_id": f"0000:41:00.0{end}", "uuid": None}) for end in ("", "-v1")]
    remote = AMD.model_copy(update={"backend": "RPC"})
    unknown = AMD.model_copy(update={"memory_total": None})
    assert offers_of([*virtual, remote, unknown]) == ()


def test_a_card_that_is_out_of_order_or_gone_is_offered_in_bad_health() -> None:
    whole = offers_of([AMD, INTEL])
    lost = offers_of([AMD], [DeviceTrouble(pci_id="0000:03:00.0", code="Lost", message="lost")], whole)
    assert [(one.resource, one.healthy) for one in lost] == [(OF_INTEL, False), (OF_AMD, False)]
    assert offers_of([AMD, INTEL], (), lost) == whole


YAML = f"""---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits: {{deviceNodes: [{{path: /dev/nvidia0}}]}}
    - name: {UUID}
      containerEdits: {{}}
containerEdits:
    env: [NVIDIA_VISIBLE_DEVICES=void]
"""


@pytest.mark.parametrize(
    "text", [YAML, json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": UUID}]})]
)
def test_names_are_found_in_specs_of_both_forms(text: str) -> None:
    assert cdi_names([text]) == {f"nvidia.com/gpu={UUID}"}
    assert cdi_names([text.replace("nvidia.com/gpu", "other.com/gpu")]) == {f"other.com/gpu={UUID}"}


# --- with the kubelet -------------------------------------------------------------------------------------------------


async def test_each_gpu_is_a_resource_with_a_device_per_granule(place: Place) -> None:
    place.nodes("0000:03:00.0", "card1", "renderD129")
    place.nodes("0000:00:02.0", "card0", "renderD128")
    offers = Offers(place.shared)
    offers.dress([NVIDIA, AMD, INTEL], [])
    async with plugged(place) as kubelet:
        await until(lambda: len(kubelet.devices) == 3, "all are listed")
        assert {name: kubelet.allocatable(name) for name in kubelet.devices} == {OF_NVIDIA: 24, OF_AMD: 4, OF_INTEL: 8}


async def test_containers_get_what_the_host_has_now(place: Place) -> None:
    place.nodes("0000:03:00.0", "card1", "renderD129", group=105)
    place.nodes("0000:00:02.0", "card0", "renderD128", mode=0o666, group=105)
    Offers(place.shared).dress([NVIDIA, AMD, INTEL], [])
    async with plugged(place) as kubelet:
        await until(lambda: len(kubelet.devices) == 3, "all are listed")
        amd = await kubelet.allocate(OF_AMD, "m0", "m1")
        assert [(one.host_path, one.container_path, one.permissions) for one in amd.devices] == [
            (path, path, "rw") for path in ("/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD129")
        ]
        place.nodes("0000:03:00.0", "card0", "renderD128")
        again = await kubelet.allocate(OF_AMD, "m3")
        assert [one.host_path for one in again.devices] == ["/dev/kfd", "/dev/dri/card0", "/dev/dri/renderD128"]
        intel = await kubelet.allocate(OF_INTEL, "m0")
        assert [one.host_path for one in intel.devices] == ["/dev/dri/card0", "/dev/dri/renderD128"]
        plain = await kubelet.allocate(OF_NVIDIA, "m0")
        assert dict(plain.envs) == {"NVIDIA_VISIBLE_DEVICES": f"runtime.nvidia.com/gpu={UUID}"}
        assert not plain.devices
        (place.cdi / "nvidia.yaml").write_text(YAML)
        by_name = await kubelet.allocate(OF_NVIDIA, "m0")
        assert [one.name for one in by_name.cdi_devices] == [f"nvidia.com/gpu={UUID}"]
        assert not by_name.envs


async def test_a_gpu_whose_device_nodes_are_missing_is_not_registered_until_they_are_there(place: Place) -> None:
    offers = Offers(place.shared)
    offers.dress([AMD, INTEL], [])
    place.nodes("0000:00:02.0", "card0", "renderD128")
    async with plugged(place) as kubelet:
        await until(lambda: OF_INTEL in kubelet.devices, "the other is listed")
        assert OF_AMD not in kubelet.devices
        place.nodes("0000:03:00.0", "card1", "renderD129")
        await until(lambda: kubelet.allocatable(OF_AMD) == 4, "it is listed once it has device nodes")


async def test_health_is_told_and_nothing_is_given_of_a_sick_card(place: Place) -> None:
    offers = Offers(place.shared)
    offers.dress([NVIDIA], [])
    async with plugged(place) as kubelet:
        await until(lambda: kubelet.allocatable(OF_NVIDIA) == 24, "it is healthy")
        offers.dress([NVIDIA], [DeviceTrouble(pci_id="0000:41:00.0", code="Xid", message="Xid 79")])
        await until(lambda: kubelet.allocatable(OF_NVIDIA) == 0, "it is out of order")
        with pytest.raises(aio.AioRpcError) as refused:
            await kubelet.allocate(OF_NVIDIA, "m0")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        offers.dress([], [])
        assert [one.healthy for one in read_offers(place.shared)] == [False], "a failed listing says nothing new"
        offers.dress([NVIDIA], [])
        await until(lambda: kubelet.allocatable(OF_NVIDIA) == 24, "it is back")
        assert kubelet.registrations == [OF_NVIDIA]


async def test_a_kubelet_that_restarts_is_registered_with_again(place: Place) -> None:
    Offers(place.shared).dress([NVIDIA], [])
    async with plugged(place) as first:
        await until(lambda: first.allocatable(OF_NVIDIA) == 24, "the first kubelet knows it")
        await first.stop()
        second = FakeKubelet(place.kubelet)
        await second.start()
        await until(lambda: second.allocatable(OF_NVIDIA) == 24, "the second knows it")
        assert (await second.allocate(OF_NVIDIA, "m7")).envs
        await second.stop()


async def test_one_that_loses_its_socket_or_the_kubelets_ear_registers_again(place: Place) -> None:
    Offers(place.shared).dress([NVIDIA], [])
    async with plugged(place) as kubelet:
        await until(lambda: kubelet.allocatable(OF_NVIDIA) == 24, "it is known")
        (own,) = [one for one in place.kubelet.glob("*.sock") if one.name != "kubelet.sock"]
        own.unlink()
        await until(lambda: len(kubelet.registrations) == 2, "again, since its socket is gone")
        await until(lambda: kubelet.allocatable(OF_NVIDIA) == 24, "it is known again")
        kubelet._streams[-1].cancel()
        await until(lambda: len(kubelet.registrations) == 3, "again, since nobody listens")
        await until(lambda: kubelet.allocatable(OF_NVIDIA) == 24, "it is known once more")


async def test_a_plugin_that_is_killed_and_comes_back_offers_the_same(place: Place) -> None:
    Offers(place.shared).dress([NVIDIA], [])
    async with plugged(place) as kubelet:
        await until(lambda: kubelet.allocatable(OF_NVIDIA) == 24, "it is known")
    assert kubelet.allocatable(OF_NVIDIA) == 0, "with the plugin gone nothing can be had"
    async with plugged(place) as again:
        await until(lambda: again.allocatable(OF_NVIDIA) == 24, "the agent's word is still there")


# --- with the agent ---------------------------------------------------------------------------------------------------


async def test_the_agent_hears_what_is_registered_and_handed_out(place: Place) -> None:
    place.nodes("0000:03:00.0", "card1", "renderD129", group=105)
    offers = Offers(place.shared)
    offers.dress([NVIDIA, AMD], [])
    heard = asyncio.Event()
    following = asyncio.create_task(offers.follow(heard.set))
    async with plugged(place) as kubelet:

        def told() -> list[tuple[int, str, list[int], bool]]:
            found = [one.plugin for one in offers.dress([NVIDIA, AMD], []) if one.plugin is not None]
            return [(one.granules, one.hands, one.groups, one.registered) for one in found]

        wanted = [(24, "Environment", [], True), (4, "Devices", [105], True)]
        await until(lambda: told() == wanted, "both are registered")
        assert heard.is_set()
        await kubelet.stop()
        await until(lambda: not any(one[3] for one in told()), "no kubelet listens")
    following.cancel()


async def test_a_plugin_that_is_silent_is_registered_no_more(place: Place) -> None:
    offers = Offers(place.shared)
    offers.dress([NVIDIA], [])
    following = asyncio.create_task(offers.follow(lambda: None))

    def registered() -> bool:
        (only,) = offers.dress([NVIDIA], [])
        return only.plugin is not None and only.plugin.registered

    async with plugged(place):
        await until(registered, "it is registered")
        state = (place.shared / STATE).read_text()
    # What a killed plugin leaves behind.
    (place.shared / STATE).write_text(state.replace("false", "true"))
    await until(registered, "its last word counts for a while")
    old = (place.shared / STATE).stat().st_mtime - SILENT - 1
    os.utime(place.shared / STATE, (old, old))
    await until(lambda: not registered(), "but not for ever")
    following.cancel()


def test_an_agent_that_restarts_goes_on_from_what_it_offered(place: Place) -> None:
    Offers(place.shared).dress([NVIDIA, INTEL], [])
    Offers(place.shared).dress([NVIDIA], [])
    found = {one.resource: one.healthy for one in read_offers(place.shared)}
    assert found == {OF_NVIDIA: True, OF_INTEL: False}


def test_a_folder_that_cannot_be_written_spoils_no_report(tmp_path: Path) -> None:
    offers = Offers(tmp_path / "later")
    assert offers.dress([NVIDIA], []) == [NVIDIA]
    (tmp_path / "later").mkdir()
    offers.dress([NVIDIA], [])
    assert read_offers(tmp_path / "later") == offers_of([NVIDIA])


def test_without_a_folder_nothing_is_offered(place: Place) -> None:
    assert Offers(None).dress([NVIDIA], []) == [NVIDIA]
    assert read_offers(place.shared) == ()
    (place.shared / OFFERS).write_text("{")
    assert read_offers(place.shared) == ()


@pytest.mark.parametrize(
    "field",
    [
        {"resource": "nvidia.com/gpu"},
        {"resource": "gpu.paddock.dev/../x"},
        {"granules": 0},
        {"granules": 10**9},
        {"uuid": "all"},
        {"pci_id": "../../../../run/paddock"},
    ],
)
def test_the_plugin_passes_over_offers_that_lead_elsewhere(place: Place, field: dict[str, object]) -> None:
    good = asdict(Offer(OF_AMD, 4, "0000:03:00.0"))
    (place.shared / OFFERS).write_text(json.dumps([good, {**asdict(Offer(OF_INTEL, 8, "0000:00:02.0")), **field}]))
    assert read_offers(place.shared) == (Offer(OF_AMD, 4, "0000:03:00.0"),)


def test_a_granule_more_or_less_is_another_offer(place: Place) -> None:
    offers = Offers(place.shared)
    offers.dress([NVIDIA], [])
    offers.dress([NVIDIA.model_copy(update={"memory_total": 7 * GIB})], [])
    assert read_offers(place.shared) == (replace(offers_of([NVIDIA])[0], granules=28),)
