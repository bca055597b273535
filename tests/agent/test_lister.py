"""What the report says when the listing works, crashes, hangs, lies or cannot start."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock.agent import lister as lister_module
from paddock.agent import nvml, processes
from paddock.agent.board import Board
from paddock.agent.lister import COMMAND, Lister, find_library_folder
from paddock.agent.settings import Settings
from paddock.api.report import NodeReport

MIB = 1024 * 1024
Cards = Callable[..., None]


class Node:
    """A lister, its board, and the board's report."""

    def __init__(self, folder: Path | None, command: tuple[str, ...] = COMMAND, **settings: object) -> None:
        self.board = Board()
        values = {"library_folder": folder, "listing_timeout": 20, "boot_id_file": Path("/nowhere")} | settings
        self.lister = Lister(Settings.model_validate(values), self.board, command)

    @property
    def report(self) -> NodeReport:
        assert self.board.posting is not None
        return self.board.posting.report

    @property
    def faults(self) -> dict[str, str]:
        return {fault.code: fault.message for fault in self.report.faults}


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def put_slot(folder: Path, address: str, **files: str) -> None:
    slot = folder / address
    slot.mkdir(parents=True)
    for name, text in {"class": "0x030000", "vendor": "0x10de", **files}.items():
        (slot / name).write_text(text + "\n")


class TestBus:
    def test_slots_of_all_makers_are_read_with_their_iommu_group(self, tmp_path: Path) -> None:
        put_slot(tmp_path, "0000:01:00.0", max_link_width="16", numa_node="0")
        put_slot(tmp_path, "0000:03:00.0", vendor="0x1002")
        put_slot(tmp_path, "0000:01:00.1", **{"class": "0x040300"})
        groups = tmp_path.parent / f"{tmp_path.name}-groups" / "7"
        (groups / "devices").mkdir(parents=True)
        for name in ("0000:01:00.0", "0000:01:00.1", "0000:02:00.0"):
            (groups / "devices" / name).touch()
        (tmp_path / "0000:01:00.0" / "iommu_group").symlink_to(groups)
        found = nvml.read_slots(tmp_path)
        assert found == {
            "0000:01:00.0": {
                "files": {"max_link_width": "16", "numa_node": "0"},
                "group": 7,
                "others": ["0000:01:00.1", "0000:02:00.0"],
            },
            "0000:03:00.0": {"files": {}, "group": None, "others": []},
        }

    async def test_links_and_peers_of_the_driver_are_reported(self, ggml: Path, cards: Cards, tmp_path: Path) -> None:
        cards(("01", "one", 6000), ("02", "two", 6000), ("03", "three", 6000))
        described = (tmp_path / "gpus").read_text().splitlines()
        described[1] += "; pcie=1x8/4x16; switch=1"
        described[2] += "; switch=1"
        (tmp_path / "gpus").write_text("\n".join(described))
        node = Node(ggml)
        assert await node.lister.list_all()
        bus = node.report.devices[0].bus
        assert bus is not None
        assert bus.pcie is not None
        assert bus.pcie.model_dump() == {"generation": 1, "max_generation": 4, "width": 8, "max_width": 16}
        assert [(one.pci_id, one.path, one.direct, one.nvlink) for one in bus.peers] == [
            ("0000:02:00.0", "OneSwitch", True, False),
            ("0000:03:00.0", "HostBridge", False, False),
        ]
        described[1] = described[1].replace("1x8", "4x8")
        (tmp_path / "gpus").write_text("\n".join(described))
        assert await node.lister.list_all()
        described[1] = described[1].replace("4x8", "1x8")
        (tmp_path / "gpus").write_text("\n".join(described))
        assert await node.lister.list_all()
        idle = node.report.devices[0].bus
        assert idle is not None
        assert idle.pcie is not None
        assert idle.pcie.generation == 4, "an idle card lowers its link"


class TestListing:
    async def test_devices_without_an_nvidia_driver(self, ggml: Path) -> None:
        node = Node(ggml)
        assert await node.lister.list_all()
        assert [(d.name, d.backend, d.index, d.duplicate_of) for d in node.report.devices] == [
            ("CUDA0", "CUDA", 0, None),
            ("BLAS", "BLAS", None, None),
            ("Vulkan0", "Vulkan", None, "CUDA0"),
        ]
        assert node.report.devices[0].memory_total == 6144 * MIB
        assert node.report.devices[0].memory_free == 4864 * MIB
        assert node.report.library is not None
        assert (node.report.library.version, node.report.library.commit) == ("9.8.7", "abcdef")
        assert node.faults == {}

    async def test_a_card_that_nvml_knows_gets_its_id_speed_and_untouched_memory(
        self, ggml: Path, cards: Cards
    ) -> None:
        cards(("01", "one", 6000))
        node = Node(ggml)
        assert await node.lister.list_all()
        device = node.report.devices[0]
        assert (device.uuid, device.pci_id, device.compute_capability) == ("GPU-one", "0000:01:00.0", "6.1")
        assert device.memory_bandwidth == 192_192_000_000
        assert device.memory_free == 5888 * MIB  # NVML's, not the 5000 MiB that ggml sees after its own context
        assert (node.report.driver_version, node.report.cuda_version) == ("570.133.07", "12.8")

    async def test_what_a_library_prints_does_not_spoil_the_answer(
        self, ggml: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_GGML", "chatty")
        node = Node(ggml)
        assert await node.lister.list_all()
        assert len(node.report.devices) == 3

    async def test_a_longer_struct_of_a_later_version_does_no_harm(
        self, ggml: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_GGML", "grown")
        node = Node(ggml)
        assert await node.lister.list_all()
        assert len(node.report.devices) == 3

    async def test_the_boot_id_and_the_model_roots_are_told(self, ggml: Path, tmp_path: Path) -> None:
        (tmp_path / "boot_id").write_text("boot-1\n")
        node = Node(ggml, boot_id_file=tmp_path / "boot_id", model_roots="/models:/more")
        await node.lister.list_all()
        assert (node.report.boot_id, node.report.model_roots) == ("boot-1", ["/models", "/more"])


class TestFaults:
    @pytest.mark.parametrize(
        ("mode", "code", "words"),
        [
            ("abort", "ListingCrashed", ["SIGABRT", "ggml_abort: boom"]),
            ("segfault", "ListingCrashed", ["SIGSEGV"]),
            ("exit", "ListingFailed", ["exit code 3"]),
            ("layout", "ListingFailed", ["unknown way"]),
        ],
    )
    async def test_a_misbehaving_library(
        self, ggml: Path, monkeypatch: pytest.MonkeyPatch, mode: str, code: str, words: list[str]
    ) -> None:
        monkeypatch.setenv("FAKE_GGML", mode)
        node = Node(ggml)
        assert not await node.lister.list_all()
        assert list(node.faults) == [code]
        assert all(word in node.faults[code] for word in words)
        assert node.report.devices == []
        assert node.lister.statistics.listings == {code: 1}

    async def test_the_same_crash_twice_is_the_same_report(self, ggml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAKE_GGML", "abort")  # its log has an address that differs each time
        node = Node(ggml)
        await node.lister.list_all()
        before = node.board.posting
        await node.lister.list_all()
        assert node.board.posting is before

    async def test_a_hanging_listing_is_killed_at_the_limit(
        self, ggml: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("FAKE_GGML", "hang")
        monkeypatch.setenv("FAKE_PID", str(tmp_path / "pid"))
        node = Node(ggml, listing_timeout=1)
        start = time.monotonic()
        assert not await node.lister.list_all()
        assert 1 <= time.monotonic() - start < 5
        assert "longer than 1 s" in node.faults["ListingTimedOut"]
        assert not is_alive(int((tmp_path / "pid").read_text()))

    async def test_a_cancelled_listing_leaves_no_process(
        self, ggml: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("FAKE_GGML", "hang")
        monkeypatch.setenv("FAKE_PID", str(tmp_path / "pid"))
        node = Node(ggml)
        task = asyncio.create_task(node.lister.list_all())
        await until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(int((tmp_path / "pid").read_text()))

    async def test_a_process_that_cannot_be_killed_is_not_joined_by_others(
        self, ggml: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("FAKE_GGML", "hang")
        monkeypatch.setenv("FAKE_PID", str(tmp_path / "pid"))
        monkeypatch.setattr(processes, "_kill", lambda _process: None)  # as if it hung inside the kernel
        monkeypatch.setattr(processes, "_REAP", 0.1)
        node = Node(ggml, listing_timeout=1)
        assert not await node.lister.list_all()
        pid = int((tmp_path / "pid").read_text())
        monkeypatch.setenv("FAKE_GGML", "")
        assert not await node.lister.list_all()
        assert f"process {pid} of an earlier listing" in node.faults["ListingTimedOut"]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: node.lister._runner.stuck is None)
        assert await node.lister.list_all()

    async def test_a_missing_library(self, tmp_path: Path) -> None:
        node = Node(tmp_path)
        assert not await node.lister.list_all()
        assert f"no libggml-base.so in {tmp_path}" in node.faults["LibraryMissing"]

    async def test_no_library_folder_at_all(self, monkeypatch: pytest.MonkeyPatch, cards: Cards) -> None:
        monkeypatch.setattr(lister_module, "find_library_folder", lambda _setting: None)
        cards(("01", "one", 6000))
        node = Node(None)
        assert not await node.lister.list_all()
        assert "llama-cpp-python" in node.faults["LibraryMissing"]
        assert node.report.driver_version == "570.133.07"

    async def test_a_library_that_cannot_be_loaded(self, tmp_path: Path) -> None:
        (tmp_path / "libggml-base.so").write_text("not a library")
        node = Node(tmp_path)
        assert not await node.lister.list_all()
        assert "cannot be loaded" in node.faults["ListingFailed"]

    @pytest.mark.parametrize(
        ("script", "words"),
        [
            ("echo nonsense", "cannot be read"),
            ("echo '{}'", "cannot be read"),
            ('echo \'{"driver": {"state": "absent"}}\'', "no devices and no reason"),
            ("true", "cannot be read"),
            ("yes", "SIGKILL"),
            ("echo oops >&2; exit 9", "exit code 9; its log ends: oops"),
            ("exit 139", "exit code 139"),
        ],
    )
    async def test_garbage_instead_of_an_answer(self, tmp_path: Path, script: str, words: str) -> None:
        node = Node(tmp_path, ("sh", "-c", script))
        assert not await node.lister.list_all()
        ((code, message),) = node.faults.items()
        assert code == ("ListingCrashed" if script in ("yes", "exit 139") else "ListingFailed")
        assert words in message

    async def test_a_program_that_cannot_be_started(self, tmp_path: Path) -> None:
        node = Node(tmp_path, (str(tmp_path / "nothing"),))
        assert not await node.lister.list_all()
        assert "cannot be started" in node.faults["ListingFailed"]

    async def test_no_device_is_a_fact_with_the_librarys_words(
        self, ggml: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAKE_GGML", "none")
        node = Node(ggml)
        assert await node.lister.list_all()
        assert "failed to initialize CUDA" in node.faults["NoDevice"]

    async def test_a_failing_driver_does_not_hide_the_devices(self, ggml: Path, cards: Cards) -> None:
        cards(("01", "one", 6000), lie="* nvml")
        node = Node(ggml)
        assert await node.lister.list_all()
        assert list(node.faults) == ["DriverFailed"]
        assert node.report.devices[0].uuid is None

    async def test_a_lost_card_is_a_fault_and_the_others_are_listed(self, ggml: Path, cards: Cards) -> None:
        cards(("01", "one", 6000), ("02", "two", 6000), lie="GPU-two lost")
        node = Node(ggml)
        assert await node.lister.list_all()
        assert "card 1 cannot be read" in node.faults["DriverFailed"]
        assert node.report.devices[0].uuid == "GPU-one"

    async def test_devices_come_back_after_a_fault(self, ggml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lister_module, "_FIRST_RETRY", 0.05)
        monkeypatch.setenv("FAKE_GGML", "abort")
        node = Node(ggml)
        task = asyncio.create_task(node.lister.run())
        await until(lambda: node.lister.statistics.listings["ListingCrashed"] >= 2)
        monkeypatch.setenv("FAKE_GGML", "")
        await until(lambda: bool(node.report.devices))
        assert node.faults == {}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class TestRefresh:
    async def test_free_memory_is_followed_without_ggml(
        self, ggml: Path, cards: Cards, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cards(("01", "one", 6000))
        node = Node(ggml)
        await node.lister.list_all()
        monkeypatch.setenv("FAKE_GGML", "abort")  # ggml would crash now
        cards(("01", "one", 1100))
        assert await node.lister.refresh()
        assert node.report.devices[0].memory_free == 1024 * MIB
        assert node.faults == {}

    async def test_a_small_change_is_no_new_report(self, ggml: Path, cards: Cards) -> None:
        cards(("01", "one", 6000))
        node = Node(ggml)
        await node.lister.list_all()
        before = node.board.posting
        cards(("01", "one", 5990))
        assert await node.lister.refresh()
        assert node.board.posting is before

    async def test_other_cards_call_for_a_full_listing(self, ggml: Path, cards: Cards) -> None:
        cards(("01", "one", 6000))
        node = Node(ggml, memory_interval=0.05, listing_interval=1000)
        task = asyncio.create_task(node.lister.run())
        await until(lambda: node.lister.statistics.memory_reads >= 2)
        assert node.lister.statistics.listings == {"ok": 1}
        cards(("01", "one", 6000), ("02", "two", 6000))
        await until(lambda: node.lister.statistics.listings["ok"] == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_a_driver_that_fails_later_keeps_the_ids_but_no_memory(self, ggml: Path, cards: Cards) -> None:
        cards(("01", "one", 6000))
        node = Node(ggml)
        await node.lister.list_all()
        cards(("01", "one", 6000), lie="* nvml")
        assert not await node.lister.refresh()
        device = node.report.devices[0]
        assert (device.uuid, device.memory_total, device.memory_free) == ("GPU-one", 6144 * MIB, None)
        assert list(node.faults) == ["DriverFailed"]
        assert node.report.driver_version == "570.133.07"
        cards(("01", "one", 6000))
        assert not await node.lister.refresh()
        assert node.faults == {}

    async def test_without_a_driver_no_process_is_started(self, ggml: Path) -> None:
        node = Node(ggml)
        await node.lister.list_all()
        assert await node.lister.refresh()
        assert node.lister.statistics.memory_reads == 0


class TestDriver:
    def test_a_card_without_the_drivers_library_is_a_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import pynvml  # noqa: PLC0415

        def fail() -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

        monkeypatch.setattr(pynvml, "nvmlInit", fail)
        assert nvml.read_driver(tmp_path) == {"state": "absent"}
        for address, vendor, kind in (
            ("0000:00:02.0", "0x8086", "0x030000"),
            ("0000:01:00.0", "0x10de", "0x030200"),
            ("0000:01:00.1", "0x10de", "0x040300"),
        ):
            (tmp_path / address).mkdir()
            (tmp_path / address / "vendor").write_text(vendor + "\n")
            (tmp_path / address / "class").write_text(kind + "\n")
        answer = nvml.read_driver(tmp_path)
        assert answer["state"] == "failed"
        assert "(0000:01:00.0)" in answer["message"]

    async def test_the_child_imports_little(self) -> None:
        code = "import sys, paddock.agent.child; print(*sys.modules)"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        loaded = set((await process.communicate())[0].decode().split())
        assert not loaded & {"pydantic", "aiohttp", "asyncio", "ssl", "pynvml"}


class TestLibraryFolder:
    def test_the_setting_goes_first(self, tmp_path: Path, ggml: Path) -> None:
        assert find_library_folder(tmp_path, ggml) == tmp_path

    def test_then_the_serving_images_own(self, ggml: Path) -> None:
        assert find_library_folder(None, ggml) == ggml

    def test_then_the_python_packages_without_importing_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "llama_cpp" / "lib").mkdir(parents=True)
        (tmp_path / "llama_cpp" / "__init__.py").write_text("raise RuntimeError('imported')")
        (tmp_path / "llama_cpp" / "lib" / "libggml.so").touch()
        monkeypatch.syspath_prepend(tmp_path)
        assert find_library_folder(None, tmp_path) == tmp_path / "llama_cpp" / "lib"

    def test_else_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
        assert find_library_folder(None, tmp_path) is None
