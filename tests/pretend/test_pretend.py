"""Which cards a process sees, and what the NVML library says: compiled here, without llama.cpp."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NODE1 = HERE / "profiles" / "demo" / "node1.gpus"
GTX_1060 = "GPU-1060a0c4-5d1f-4b6e-8c2a-3f7e9d10b601"
RTX_4080 = "GPU-4080b7e2-91c3-4f0d-a5d8-6c2b1e47f802"
RTX_PRO_6000 = "GPU-6000c9f1-27ab-4e38-b0c6-8d5f3a92e103"
INTEL, PCI_1060, PCI_4080 = "0000:00:02.0", "0000:01:00.0", "0000:02:00.0"

# Returns the addresses of the visible cards, or null when the backend gives up.
WRAPPER = """
#include "pretend.h"
#include <string.h>
__attribute__((visibility("default"))) const char *visible(int vulkan) {
    static char text[1024];
    struct pretend_machine machine;
    size_t order[PRETEND_MAX];
    pretend_read(&machine);
    int count = vulkan ? pretend_vulkan(&machine, order) : pretend_cuda(&machine, order);
    if (count < 0) return 0;
    text[0] = 0;
    for (int i = 0; i < count; i++) strcat(strcat(text, i ? " " : ""), machine.card[order[i]].pci);
    return text;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("pretend")
    (folder / "wrapper.c").write_text(WRAPPER)
    target = folder / "libpretend.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-I{HERE}", folder / "wrapper.c", HERE / "pretend.c", "-o", target], check=True
    )
    loaded = ctypes.CDLL(str(target))
    loaded.visible.restype = ctypes.c_char_p
    return loaded


def visible(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], backend: str
) -> list[str] | None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PADDOCK_PRETEND_GPUS": str(NODE1), "NVIDIA_VISIBLE_DEVICES": "all", **environment}.items():
        monkeypatch.setenv(name, value)
    text = library.visible(backend == "vulkan")
    return None if text is None else text.decode().split()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, [PCI_4080, PCI_1060]),  # the fastest first
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [PCI_1060, PCI_4080]),
        ({"CUDA_VISIBLE_DEVICES": RTX_4080}, [PCI_4080]),
        ({"CUDA_VISIBLE_DEVICES": f"{GTX_1060},{RTX_4080}"}, [PCI_1060, PCI_4080]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-10"}, [PCI_1060]),  # the start of one
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, []),  # of both
        ({"CUDA_VISIBLE_DEVICES": RTX_PRO_6000}, []),
        ({"CUDA_VISIBLE_DEVICES": f"{RTX_PRO_6000},{RTX_4080}"}, []),  # nothing after one that is not there
        ({"CUDA_VISIBLE_DEVICES": f"{RTX_4080},{RTX_PRO_6000},{GTX_1060}"}, [PCI_4080]),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [PCI_4080]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [PCI_1060]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"NVIDIA_VISIBLE_DEVICES": RTX_4080}, [PCI_4080]),
        ({"NVIDIA_VISIBLE_DEVICES": f"runtime.nvidia.com/gpu={RTX_4080}"}, [PCI_4080]),
        ({"NVIDIA_VISIBLE_DEVICES": RTX_4080, "CUDA_VISIBLE_DEVICES": GTX_1060}, []),
        ({"NVIDIA_VISIBLE_DEVICES": RTX_4080, "CUDA_VISIBLE_DEVICES": "0"}, [PCI_4080]),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-4080"}, None),  # the toolkit takes no part of a name
        ({"NVIDIA_VISIBLE_DEVICES": RTX_PRO_6000}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_cuda_shows_what_the_driver_would(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: list[str] | None
) -> None:
    assert visible(library, monkeypatch, environment, "cuda") == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, [INTEL, PCI_4080]),
        ({"GGML_VK_VISIBLE_DEVICES": "1"}, [PCI_4080]),
        ({"GGML_VK_VISIBLE_DEVICES": "1,0"}, [PCI_4080, INTEL]),
        ({"GGML_VK_VISIBLE_DEVICES": "2"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, [INTEL]),
        ({"NVIDIA_VISIBLE_DEVICES": "void", "GGML_VK_VISIBLE_DEVICES": "1"}, None),
        ({"CUDA_VISIBLE_DEVICES": GTX_1060}, [INTEL, PCI_4080]),
    ],
)
def test_vulkan_counts_raw_positions(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: list[str] | None
) -> None:
    assert visible(library, monkeypatch, environment, "vulkan") == expected


def test_lost_card_is_hidden(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lies").write_text(f"{RTX_4080} lost\n")
    environment = {"PADDOCK_PRETEND_LIES": str(tmp_path / "lies")}
    assert visible(library, monkeypatch, environment, "cuda") == [PCI_1060]
    assert visible(library, monkeypatch, environment, "vulkan") == [INTEL]


ASK_NVML = """
import json, pynvml as n
n.nvmlInit()
def tell(h):
    p, m = n.nvmlDeviceGetPciInfo(h), n.nvmlDeviceGetMemoryInfo(h)
    v = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
    return dict(name=n.nvmlDeviceGetName(h), uuid=n.nvmlDeviceGetUUID(h), bus=p.busId, short=p.busIdLegacy,
        total=m.total, free=m.free, used=m.used, reserved=v.reserved, cc=n.nvmlDeviceGetCudaComputeCapability(h),
        width=n.nvmlDeviceGetMemoryBusWidth(h), clock=n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM))
def mig(h):
    try: n.nvmlDeviceGetMigMode(h)
    except n.NVMLError_NotSupported: return "not supported"
cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps(dict(driver=n.nvmlSystemGetDriverVersion(), cuda=n.nvmlSystemGetCudaDriverVersion(),
    cards=[tell(h) for h in cards], mig=[mig(h) for h in cards])))
n.nvmlShutdown()
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    sources = [HERE / "pretend.c", HERE / "accounts.c", HERE / "fakenvml.c"]
    subprocess.run(["gcc", "-std=gnu11", "-shared", "-fPIC", *sources, "-o", folder / "libnvidia-ml.so.1"], check=True)
    return folder


def ask_nvml(folder: Path, code: str = ASK_NVML, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"LD_LIBRARY_PATH": str(folder), "PADDOCK_PRETEND_GPUS": str(NODE1), "NVIDIA_VISIBLE_DEVICES": "all"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NVIDIA_", "PADDOCK_PRETEND"))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=clean | given | environment, capture_output=True, text=True, check=False)


def test_nvml_describes_the_nvidia_cards_only(nvml: Path) -> None:
    answer = json.loads(ask_nvml(nvml).stdout)
    assert (answer["driver"], answer["cuda"]) == ("580.95.05", 13000)
    assert [card["uuid"] for card in answer["cards"]] == [GTX_1060, RTX_4080]
    card = answer["cards"][1]
    assert card["name"] == "NVIDIA GeForce RTX 4080 Laptop GPU"
    assert (card["bus"], card["short"]) == ("00000000:02:00.0", PCI_4080)
    assert card["total"] == 12282 << 20
    assert card["free"] + card["used"] == card["total"]
    assert card["reserved"] == card["used"]
    assert (card["cc"], card["width"], card["clock"]) == ([8, 9], 192, 9001)
    assert answer["mig"] == ["not supported", "not supported"]


def test_nvml_shows_what_the_container_was_given_whatever_cuda_may_see(nvml: Path) -> None:
    answer = json.loads(ask_nvml(nvml, NVIDIA_VISIBLE_DEVICES=GTX_1060, CUDA_VISIBLE_DEVICES=RTX_4080).stdout)
    assert [card["uuid"] for card in answer["cards"]] == [GTX_1060]


def test_nvml_without_a_driver(nvml: Path) -> None:
    assert "NVMLError_DriverNotLoaded" in ask_nvml(nvml, NVIDIA_VISIBLE_DEVICES="void").stderr


@pytest.mark.parametrize(("lie", "error"), [("lost", "NVMLError_GpuIsLost"), ("nvml", "NVMLError_DriverNotLoaded")])
def test_nvml_lies(nvml: Path, tmp_path: Path, lie: str, error: str) -> None:
    (tmp_path / "lies").write_text(f"{RTX_4080} {lie}\n")
    assert error in ask_nvml(nvml, PADDOCK_PRETEND_LIES=str(tmp_path / "lies")).stderr
