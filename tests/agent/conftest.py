"""Made-up ggml libraries and a made-up NVML, compiled once for all tests; certificates and a token."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.agent_credentials import TOKEN, make_certificate

HERE = Path(__file__).parent
PRETEND = HERE.parent / "pretend"
CARDS = "driver=570.133.07; cuda=12.8\n"
CARD = (
    "name=NVIDIA GeForce GTX 1060 6GB; uuid=GPU-{uuid}; pci=0000:{bus}:00.0; type=gpu; total=6144; free={free};"
    " backends=cuda; cc=6.1; bus=192; clock=4004\n"
)


def compile_c(output: Path, *arguments: str | Path) -> None:
    subprocess.run(["gcc", "-O1", "-fPIC", "-shared", "-w", *arguments, "-o", output], check=True)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "ggml").mkdir()
    (folder / "nvml").mkdir()
    source = HERE / "fake_ggml.c"
    compile_c(folder / "ggml" / "libggml-base.so", "-DBASE", source)
    compile_c(folder / "ggml" / "libggml.so", source)
    sources = [PRETEND / name for name in ("pretend.c", "accounts.c", "fakenvml.c")]
    compile_c(folder / "nvml" / "libnvidia-ml.so.1", *sources)
    return folder


@pytest.fixture
def ggml(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the made-up ggml; FAKE_GGML in the environment says how it misbehaves. No NVIDIA driver."""
    monkeypatch.delenv("FAKE_GGML", raising=False)
    return compiled / "ggml"


@pytest.fixture
def cards(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put NVIDIA cards into the machine: `cards((bus, uuid, free MiB), ..., lies="nvml")`."""
    described, lies = tmp_path / "gpus", tmp_path / "lies"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(compiled / "nvml"))
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    monkeypatch.setenv("PADDOCK_PRETEND_GPUS", str(described))
    monkeypatch.setenv("PADDOCK_PRETEND_LIES", str(lies))
    monkeypatch.setenv("PADDOCK_PRETEND_ACCOUNTS", str(tmp_path / "accounts"))
    (tmp_path / "accounts").mkdir()

    def put(*inserted: tuple[str, str, int], lie: str = "") -> None:
        described.write_text(
            CARDS + "".join(CARD.format(bus=bus, uuid=uuid, free=free) for bus, uuid, free in inserted)
        )
        lies.write_text(lie)

    return put


@pytest.fixture
def credentials_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "credentials"
    folder.mkdir()
    make_certificate(folder)
    (folder / "token").write_text(TOKEN + "\n")
    return folder
