"""On a real NVIDIA machine, without Kubernetes: registry, pin, the driver's proof, the estimate, virtual devices."""

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu.conftest import Machine
from paddock.agent.board import Board
from paddock.agent.headers import read_header
from paddock.agent.lister import Lister
from paddock.agent.settings import Settings
from paddock.agent.watch import Folders, Watch
from paddock.agent.watcher import Look
from paddock.api.report import DeviceUse, NodeReport
from paddock.core.binding import Binding
from paddock.core.deployment import deployment_of
from paddock.core.evidence import Expected, ServerLog, judge, parse_log
from paddock.core.fleet import Device, device_of
from paddock.core.inventory import observe
from paddock.core.need import MemoryNeed, need
from paddock.core.pod import CONTEXT_CHECKPOINTS, Mounted, arguments
from paddock.core.witness import Subject, combine, look
from support.builders import bound
from support.harness import free_port

pytestmark = pytest.mark.gpu
MIB = 1 << 20
CONTEXT = 8192
BODY = {
    "metadata": {"namespace": "test", "name": "gpu", "uid": "u", "generation": 1},
    "spec": {"model": {"source": "file:///models/x.gguf"}, "serving": {"contextLength": CONTEXT}},
}
DEPLOYMENT = deployment_of(BODY)


async def listed(machine: Machine, **environment: str) -> NodeReport:
    """List as the agent does: in a child, through ctypes."""
    board = Board()
    lister = Lister(Settings(library_folder=machine.folder, listing_timeout=60), board)
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        assert await lister.list_all(), board.posting
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert board.posting is not None
    return board.posting.report


def devices(report: NodeReport) -> list[Device]:
    """Give CUDA devices as placement sees them."""
    found = [device_of(name, status) for name, status in observe("here", report, "2026-01-01T00:00:00Z").items()]
    return [one for one in found if one.backend == "CUDA"]


class Server:
    """A llama-server with the arguments and the environment that its pod would have."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, seconds: float) -> None:
        self.pid, self._log, self.seconds = process.pid, log, seconds

    @property
    def log(self) -> ServerLog:
        return parse_log(self._log.read_text(errors="replace"))


@contextmanager
def serving(machine: Machine, environment: dict[str, str], name: str, folder: Path) -> Iterator[Server]:
    """Run a server on what its environment shows, until it answers and then for the test."""
    port, log = free_port(), folder / f"{name}-{time.monotonic_ns()}.log"
    mounted = Mounted("", "", str(machine.model), machine.model.stat().st_size)
    argv = arguments(DEPLOYMENT, Binding(name, {}), mounted, threads=max(1, (os.cpu_count() or 2) // 2))
    argv[argv.index("--port") + 1], argv[argv.index("--host") + 1] = str(port), "127.0.0.1"
    began = time.monotonic()
    with log.open("wb") as out:
        command = [str(machine.folder / "llama-server"), *argv]
        process = subprocess.Popen(command, env=os.environ | environment, stdout=out, stderr=out)
    try:
        while not _answers(port):
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() - began < 120, f"not up in time: {log.read_text(errors='replace')[-3000:]}"
            time.sleep(0.1)
        yield Server(process, log, time.monotonic() - began)
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def seen(machine: Machine, pid: int) -> list[DeviceUse]:
    """Give what NVML shows, with the server's process as that of the pod `uid`."""
    look_ = Look.parse(_json(Watch(Folders(), machine.session, processes=True)))
    return [
        use.model_copy(
            update={
                "processes": [
                    one.model_copy(update={"pod": "uid", "container": None}) if one.pid == pid else one
                    for one in use.processes
                ]
            }
        )
        for use in look_.uses or ()
    ]


def _json(watch: Watch) -> bytes:
    return json.dumps(watch.look()).encode()


def needed(machine: Machine) -> MemoryNeed:
    """Give the estimate for the model on CUDA."""
    answer = read_header(str(machine.model), [str(machine.model.parent)])
    assert answer.summary is not None, answer.fault
    assert DEPLOYMENT.spec is not None
    return need(answer.summary, DEPLOYMENT.spec.serving, gpu=True, checkpoints=CONTEXT_CHECKPOINTS)


def tell(text: str) -> None:
    """Print a figure for whoever runs this."""
    sys.stdout.write(f"\n{text}\n")


async def test_the_registry_and_nvml_name_the_same_cards(machine: Machine) -> None:
    report = await listed(machine)
    found = devices(report)
    tell(f"driver {report.driver_version}, CUDA {report.cuda_version}, ggml {report.library}")
    for one in found:
        tell(f"{one.name} {one.description} {one.pci_id} {one.uuid}: {one.free} of {one.total} bytes free")
    assert found, report.faults
    assert all(one.pinnable and one.pci_id and one.uuid and one.total for one in found), found
    watched = Look.parse(_json(Watch(Folders(), machine.session, processes=True)))
    assert {one.pci_id for one in watched.cards} >= {one.pci_id for one in found}
    assert watched.uses is not None, "NVML lists no processes"


async def test_a_pinned_server_is_where_it_belongs_by_log_and_driver(machine: Machine, tmp_path: Path) -> None:
    found, estimate = devices(await listed(machine)), needed(machine)
    for device in found[:2]:
        binding = bound(device)
        with serving(machine, dict(binding.environment), binding.name_in_pod or "", tmp_path) as server:
            subject = Subject("uid", "", device.pci_id, estimate.device_bytes, estimate.device_weights)
            expected = Expected(
                binding.name_in_pod,
                device.pci_id,
                device.description,
                estimate.host_weights,
                estimate.device_bytes,
                estimate.device_weights,
            )
            log = judge(server.log, expected)
            sight = look(seen(machine, server.pid), subject, {device.pci_id or "": device.description})
            proof = combine(log, sight.evidence, subject)
            tell(f"{device.name} {device.pci_id}: up after {server.seconds:.1f} s; {proof.reason}: {proof.message}")
            assert log.verified, log
            assert sight.evidence is not None, "NVML does not list the server's process"
            assert proof.verified, proof
            for other in found:
                if other.pci_id != device.pci_id:
                    wrong = look(seen(machine, server.pid), Subject("uid", "", other.pci_id), {})
                    assert wrong.evidence is not None
                    assert not wrong.evidence.verified


async def test_the_estimate_against_the_driver(machine: Machine, tmp_path: Path) -> None:
    device, estimate = devices(await listed(machine))[0], needed(machine)
    binding = bound(device)
    with serving(machine, dict(binding.environment), binding.name_in_pod or "", tmp_path) as server:
        use = next(use for use in seen(machine, server.pid) if use.pci_id == device.pci_id)
        observed = next(one.bytes for one in use.processes if one.pid == server.pid) or 0
        buffers = server.log.on(binding.name_in_pod or "")
    tell(
        f"estimate {estimate.device_bytes / MIB:.0f} MiB, driver {observed / MIB:.0f} MiB,"
        f" buffers {buffers / MIB:.0f} MiB, beside the buffers {(observed - buffers) / MIB:.0f} MiB"
    )
    assert buffers <= observed <= estimate.device_bytes


async def test_virtual_devices_are_told_apart(machine: Machine, tmp_path: Path) -> None:
    report = await listed(machine, GGML_CUDA_DEVICES="3")
    virtual = [one for one in report.devices if one.backend == "CUDA"]
    if len(virtual) < 3:
        pytest.skip(f"this build of llama.cpp makes no virtual devices: {[one.name for one in virtual]}")
    tell(", ".join(f"{one.name} {one.pci_id}" for one in virtual))
    assert len({one.pci_id for one in virtual}) == len(virtual)
    with serving(machine, {"GGML_CUDA_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "CUDA1", tmp_path) as server:
        (opened,) = server.log.devices
        assert opened.name == "CUDA1"
        assert re.sub(r"-v\d+$", "", opened.pci_id or "") == re.sub(r"-v\d+$", "", virtual[1].pci_id or "")
        assert judge(server.log, Expected("CUDA0", virtual[0].pci_id)).verified is False, "another one is refuted"


def test_the_driver_can_be_waited_for(machine: Machine) -> None:
    began = time.monotonic()
    assert machine.session.wait(0.3) is None
    assert 0.2 < time.monotonic() - began < 5
