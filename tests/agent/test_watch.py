"""What the watching process sees: NVML by the pretend library, AMD and Intel by made-up /proc and /sys."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.agent.board import Board
from paddock.agent.lister import Lister
from paddock.agent.settings import Settings
from paddock.agent.watch import HOLD, Folders, Troubles, Watch
from paddock.agent.watcher import COMMAND, Look, Watcher
from paddock.api.report import NodeReport
from support.foreign import foreign_process

MIB, GIB = 1 << 20, 1 << 30
Cards = Callable[..., None]
PCI = "0000:01:00.0"
UID, CONTAINER = "7b0e6c1d-3a52-4c8f-9d27-5f1e0b9a6c34", "3f" * 32


async def until(condition: Callable[[], Any], seconds: float = 15) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        await asyncio.sleep(0.02)
    return found


@asynccontextmanager
async def running(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something meanwhile."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def watching(
    command: tuple[str, ...] = COMMAND, **settings: object
) -> AsyncIterator[tuple[Watcher, list[Look | None]]]:
    """Give a watcher that runs, and all that it hands on."""
    looks: list[Look | None] = []
    values = {"watch_interval": 0.1, "host_processes": True} | settings
    watcher = Watcher(Settings.model_validate(values), looks.append, command)
    async with running(watcher.run()):
        yield watcher, looks


def last(looks: list[Look | None]) -> Look:
    return next((one for one in reversed(looks) if one is not None), Look())


class TestNvml:
    async def test_a_process_appears_and_goes(self, cards: Cards, tmp_path: Path) -> None:
        cards(("01", "one", 6000), ("02", "two", 6000))
        async with watching() as (_, looks):
            await until(lambda: last(looks).uses)
            assert [(use.pci_id, use.processes) for use in last(looks).uses or ()] == [(PCI, []), ("0000:02:00.0", [])]
            with foreign_process(tmp_path / "accounts", PCI, 3 * GIB) as process:
                (seen,) = await until(lambda: (last(looks).uses or [])[0].processes)
                assert (seen.pid, seen.bytes, seen.pod, seen.container) == (process.pid, 3 * GIB, None, None)
                assert seen.command.startswith("python")
                assert last(looks).cards[0].free == 6000 * MIB - 3 * GIB
                assert (last(looks).uses or [])[1].processes == []
            await until(lambda: not (last(looks).uses or [])[0].processes)
            assert last(looks).cards[0].free == 6000 * MIB

    async def test_without_the_hosts_processes_there_is_memory_but_no_use(self, cards: Cards, tmp_path: Path) -> None:
        cards(("01", "one", 6000))
        async with watching(host_processes=False) as (_, looks):
            with foreign_process(tmp_path / "accounts", PCI, GIB):
                await until(lambda: last(looks).cards and last(looks).cards[0].free == 6000 * MIB - GIB)
                assert last(looks).uses is None

    async def test_numbers_that_move_a_little_are_not_told(self, cards: Cards, tmp_path: Path) -> None:
        cards(("01", "one", 6000))
        async with watching() as (_, looks):
            with foreign_process(tmp_path / "accounts", PCI, GIB) as process:
                await until(lambda: last(looks).uses and (last(looks).uses or [])[0].processes)
                file = tmp_path / "accounts" / f"{process.pid}-foreign"
                await asyncio.sleep(0.6)  # until the number is told exactly
                count = len(looks)
                for step in range(8):
                    with file.open("r+") as account:
                        account.write(f"{PCI} {GIB + (step % 2) * 100 * MIB:012d}\n")
                    await asyncio.sleep(0.12)
                assert len(looks) == count
                with file.open("r+") as account:
                    account.write(f"{PCI} {2 * GIB:012d}\n")
                await until(lambda: (last(looks).uses or [])[0].processes[0].bytes == 2 * GIB)

    async def test_a_lost_card_is_told_and_its_neighbour_is_still_watched(self, cards: Cards) -> None:
        cards(("01", "one", 6000), ("02", "two", 6000))
        async with watching() as (_, looks):
            await until(lambda: last(looks).cards)
            cards(("01", "one", 6000), ("02", "two", 6000), lie="GPU-one lost\n")
            (trouble,) = await until(lambda: last(looks).troubles)
            assert (trouble.pci_id, trouble.code) == (PCI, "Lost")
            assert [one.pci_id for one in last(looks).cards] == ["0000:02:00.0"]
            cards(("01", "one", 6000), ("02", "two", 6000))
            await until(lambda: not last(looks).troubles and len(last(looks).cards) == 2)

    async def test_an_error_that_the_driver_tells_of(self, cards: Cards) -> None:
        cards(("01", "one", 6000), ("02", "two", 6000))
        async with watching() as (_, looks):
            await until(lambda: last(looks).cards)
            cards(("01", "one", 6000), ("02", "two", 6000), lie="GPU-one xid=31\nGPU-two xid=79\n")
            (trouble,) = await until(lambda: last(looks).troubles)
            assert (trouble.pci_id, trouble.code) == ("0000:02:00.0", "Xid")
            assert trouble.message == "the driver told of Xid 79, the card fell off the bus"

    async def test_without_a_driver_it_ends_and_is_not_started_again_at_once(self) -> None:
        async with watching() as (watcher, looks):
            await until(lambda: looks)
            await asyncio.sleep(1.5)
            assert (looks, watcher.starts) == ([None], 1)

    async def test_a_process_that_talks_nonsense_or_dies_is_replaced(self) -> None:
        script = "import sys; print('{\"cards\": []}', flush=True); print('nonsense', flush=True)"
        async with watching((sys.executable, "-c", script)) as (watcher, looks):
            await until(lambda: watcher.starts == 2, 10)
            assert looks[:2] == [Look(), None]

    async def test_a_process_that_hangs_is_killed(self) -> None:
        script = (sys.executable, "-c", "import time; time.sleep(60)")
        async with watching(script, listing_timeout=0.3) as (_, looks):
            await until(lambda: looks == [None])


class TestReport:
    async def test_the_report_has_uses_and_troubles_and_free_memory_at_once(
        self, ggml: Path, cards: Cards, tmp_path: Path
    ) -> None:
        cards(("01", "one", 6000))
        board = Board()
        settings = Settings(library_folder=ggml, watch_interval=0.1, host_processes=True, memory_interval=60)
        lister = Lister(settings, board)

        def report() -> NodeReport:
            return board.posting.report if board.posting else NodeReport()

        async with running(Watcher(settings, lister.take).run(), lister.run()):
            await until(lambda: report().devices and report().uses)
            with foreign_process(tmp_path / "accounts", PCI, 3 * GIB):
                await until(lambda: (report().uses or [])[0].processes)
                await until(lambda: report().devices[0].memory_free == 2816 * MIB)
            listings = lister.statistics.listings.total()
            cards(("01", "one", 6000), lie="GPU-one lost\n")
            await until(lambda: [one.code for one in report().troubles] == ["Lost"])
            await until(lambda: lister.statistics.listings.total() > listings)
            cards(("01", "one", 6000))
            await until(lambda: not report().troubles and report().devices and not report().faults)
            assert lister.statistics.memory_reads == 0, "the watching process tells what the card has free"


class FakeSession:
    """Stands for the driver, with one card and processes of our own choice."""

    def __init__(self, **card: object) -> None:
        self.lost: list[str] = []
        self.card: dict[str, Any] = {
            "pci_id": PCI,
            "processes": {},
            "total": 8 * GIB,
            "free": 6 * GIB,
            "trouble": None,
        } | card
        self.thorough: list[bool] = []

    def look(self, *, thorough: bool) -> list[dict[str, Any]]:
        self.thorough.append(thorough)
        return [dict(self.card)]


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


class TestPeople:
    def test_pid_to_pod_and_container(self, tmp_path: Path) -> None:
        proc = tmp_path / "proc"
        write(proc / "self", cgroup="0::/\n")
        write(
            proc / "11", cgroup=f"0::/../kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n"
        )
        write(proc / "11", comm="llama-server\n")
        write(proc / "12", cgroup="0::/\n", comm="python3\n", cmdline="python3\0-P\0-m\0paddock.agent.child\0/app\0")
        write(proc / "13", cgroup="0::/\n", comm="Xorg\n", cmdline="Xorg\0")
        session = FakeSession(processes={11: GIB, 12: 300 * MIB, 13: 60 * MIB, 14: 5})
        watch = Watch(Folders(proc, tmp_path / "sys"), session, processes=True)  # type: ignore[arg-type]
        told = watch.look()
        (use,) = told["uses"]
        assert use["used"] == 2 * GIB - 300 * MIB, "what the agent's own listing has for a while is not counted"
        assert told["cards"][0]["free"] == 6 * GIB + 300 * MIB
        assert [(p["pid"], p["pod"], p["container"], p["command"]) for p in use["processes"]] == [
            (11, UID, CONTAINER, "llama-server"),
            (13, None, None, "Xorg"),
            (14, None, None, ""),  # it ended meanwhile
        ]

    def test_a_number_that_is_used_again_is_another_process(self, tmp_path: Path) -> None:
        proc = tmp_path / "proc"
        write(proc / "11", cgroup=f"0::/kubepods/pod{UID}/{CONTAINER}\n", comm="llama-server\n")
        session = FakeSession(processes={11: GIB})
        watch = Watch(Folders(proc, tmp_path / "sys"), session, processes=True)  # type: ignore[arg-type]
        assert watch.look()["uses"][0]["processes"][0]["pod"] == UID
        session.card["processes"] = {}
        watch.look()
        write(proc / "11", cgroup="0::/\n", comm="python\n")
        session.card["processes"] = {11: GIB}
        assert watch.look()["uses"][0]["processes"][0]["pod"] is None


class TestTroubles:
    def test_errors_are_held_for_a_while_and_then_forgotten(self) -> None:
        moment = 0.0
        troubles = Troubles(lambda: moment)
        card = {"pci_id": PCI}
        troubles.xid(PCI, 43)
        assert troubles.look(card) is None, "a program's own mistake"
        troubles.xid(PCI, 48)
        assert (troubles.look(card) or ("",))[0] == "Xid"
        moment = HOLD - 1
        assert troubles.look(card) is not None
        troubles.xid(PCI, 48)
        moment = HOLD + 1
        assert troubles.look(card) is not None, "it came again"
        moment = 2 * HOLD
        assert troubles.look(card) is None

    def test_memory_errors_count_once_they_become_more(self) -> None:
        moment = 0.0
        troubles = Troubles(lambda: moment)
        counters = {"pci_id": PCI, "rows": None, "recovery": None}
        assert troubles.look(counters | {"ecc": 7}) is None, "of before"
        assert troubles.look(counters | {"ecc": 9}) == (
            "EccError",
            "2 uncorrectable memory errors, 9 since the driver was loaded",
        )
        moment = HOLD
        assert troubles.look(counters | {"ecc": 9}) is None
        assert troubles.look(counters | {"ecc": None}) is None

    @pytest.mark.parametrize(
        ("found", "words"),
        [
            ({"rows": (0, 1, 1, 0)}, "is replaced at the next reset"),
            ({"rows": (0, 9, 0, 1)}, "could not be replaced"),
            ({"recovery": 2}, "asks for a reboot of the node"),
            ({"recovery": 77}, "recovery action 77"),
        ],
    )
    def test_a_card_that_needs_a_reset_stays_so_until_it_had_one(self, found: dict[str, Any], words: str) -> None:
        troubles = Troubles(lambda: 0.0)
        sound = {"pci_id": PCI, "ecc": None, "rows": None, "recovery": 0}
        code, message = troubles.look(sound | found) or ("", "")
        assert code == "NeedsReset"
        assert words in message
        assert troubles.look({"pci_id": PCI}) == (code, message), "looks between two thorough ones know it too"
        assert troubles.look(sound) is None

    def test_counters_are_read_now_and_then(self, tmp_path: Path) -> None:
        session = FakeSession()
        watch = Watch(Folders(tmp_path, tmp_path), session, processes=True)  # type: ignore[arg-type]
        for _ in range(11):
            watch.look()
        assert session.thorough == [True, *[False] * 9, True]


class TestAmdAndIntel:
    def test_processes_of_amds_compute_driver(self, tmp_path: Path) -> None:
        kfd = tmp_path / "sys" / "class" / "kfd" / "kfd"
        write(kfd / "topology" / "nodes" / "0", gpu_id="0\n", properties="simd_count 0\nlocation_id 0\n")
        write(
            kfd / "topology" / "nodes" / "1", gpu_id="51432\n", properties="simd_count 304\nlocation_id 768\ndomain 0\n"
        )
        write(kfd / "proc" / "4242", vram_51432=f"{GIB}\n", sdma_51432="1", pasid="5")
        write(tmp_path / "proc" / "4242", cgroup=f"0::/kubepods/pod{UID}/{CONTAINER}\n", comm="llama-server\n")
        watch = Watch(Folders(tmp_path / "proc", tmp_path / "sys"), None, processes=True)
        (use,) = watch.look()["uses"]
        assert (use["pci_id"], use["source"], use["complete"], use["used"]) == ("0000:03:00.0", "KFD", True, None)
        assert [(p["pid"], p["bytes"], p["pod"]) for p in use["processes"]] == [(4242, GIB, UID)]

    def test_processes_by_fdinfo(self, tmp_path: Path) -> None:
        device = tmp_path / "sys" / "devices" / "0000:00:02.0"
        (tmp_path / "sys" / "drivers" / "i915").mkdir(parents=True)
        device.mkdir(parents=True)
        (device / "driver").symlink_to(tmp_path / "sys" / "drivers" / "i915")
        render = tmp_path / "sys" / "class" / "drm" / "renderD128"
        render.mkdir(parents=True)
        (render / "device").symlink_to(device)
        text = "drm-driver: i915\ndrm-client-id: 9\ndrm-pdev: 0000:00:02.0\ndrm-resident-local0: 512 MiB\n"
        write(tmp_path / "proc" / "77" / "fdinfo", **{"3": text, "4": text, "5": "pos: 0\n"})
        write(tmp_path / "proc" / "77", cgroup=f"0::/kubepods/pod{UID}/{CONTAINER}\n", comm="llama-server\n")
        write(tmp_path / "proc" / "78", cgroup="0::/\n", comm="bash\n")
        watch = Watch(Folders(tmp_path / "proc", tmp_path / "sys"), None, processes=True)
        (use,) = watch.look()["uses"]
        assert (use["pci_id"], use["source"], use["complete"]) == ("0000:00:02.0", "DRM", False)
        assert [(p["pid"], p["bytes"], p["container"]) for p in use["processes"]] == [(77, 512 * MIB, CONTAINER)]

    def test_where_there_is_neither_nothing_is_watched(self, tmp_path: Path) -> None:
        assert not Watch(Folders(tmp_path, tmp_path), None, processes=True).useful


def test_the_process_ends_with_the_agent(cards: Cards) -> None:
    cards(("01", "one", 6000))
    command = [sys.executable, "-P", "-m", "paddock.agent.watch", "0.05", "--processes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["cards"]
        process.stdout.close()
        cards(("01", "one", 100))
        assert process.wait(10) == 0
