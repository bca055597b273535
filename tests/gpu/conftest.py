"""What a machine with an NVIDIA GPU must have for these tests; where something lacks, they are skipped and say what.

`PADDOCK_LLAMA_CPP` is a folder with llama-server, libggml.so and libggml-cuda.so of the build that images name;
`PADDOCK_GPU_MODEL` a GGUF file of 1 to 20 GB that fits a card.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from paddock.agent.nvml import Session, read_driver


@dataclass(frozen=True)
class Machine:
    """What is there."""

    folder: Path
    """Of llama-server and its libraries."""
    model: Path
    session: Session
    """NVML, kept open."""
    driver: str


def _missing() -> str | None:
    driver = read_driver()
    if driver["state"] == "absent" or not driver.get("cards"):
        return f"no NVIDIA GPU with a driver is on this machine: {driver.get('message') or 'none is listed'}"
    folder = os.environ.get("PADDOCK_LLAMA_CPP")
    if not folder:
        return "PADDOCK_LLAMA_CPP does not name the folder of llama-server and its CUDA backend"
    lacking = [one for one in ("llama-server", "libggml.so", "libggml-cuda.so") if not (Path(folder) / one).exists()]
    if lacking:
        return f"{folder} has no {', '.join(lacking)}"
    model = os.environ.get("PADDOCK_GPU_MODEL")
    return None if model and Path(model).is_file() else "PADDOCK_GPU_MODEL does not name a GGUF file"


@pytest.fixture(scope="session")
def machine() -> Machine:
    """Give the machine, or skip with what it lacks."""
    missing = _missing()
    if missing is not None:
        pytest.skip(missing)
    driver = str(read_driver()["driver_version"])
    return Machine(Path(os.environ["PADDOCK_LLAMA_CPP"]), Path(os.environ["PADDOCK_GPU_MODEL"]), Session(), driver)
