"""`make demo CLUSTER=kind` with stand-ins for every program: which commands they are given, and what users are told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cluster.settings import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

PLACED = {"node": "paddock-control-plane", "devices": []}
STATUS = {"status": {"placements": [PLACED], "conditions": [{"type": "Verified", "status": "True"}]}}
ANSWER = {"choices": [{"message": {"content": "A small field."}}], "usage": {"completion_tokens": 5}}
STAND_INS = {
    "kind": 'case "$*" in "get clusters") ;; "get nodes"*) echo paddock-control-plane;; *) exit $KIND_STATUS;; esac',
    "docker": '[ "$1" != info ] || exit $DOCKER_STATUS',
    "kubectl": f"case \"$*\" in *'-o json') echo '{json.dumps(STATUS)}';; *create*) cat /dev/null;; esac",
    "helm": "",
    "pip": "",
    "paddock": f"case \"$1\" in chat) echo '{json.dumps(ANSWER)}';; esac",
    "python": 'case "$*" in *__version__*) echo 0.1.0;; *cached*) echo /models/gemma.gguf;; *) $PYTHON "$@";; esac',
}
USED = ("bash", "cat", "dirname", "env", "grep", "mkdir")
"""What the scripts may find beside the stand-ins; this machine may have a real kubectl."""


def demo(folder: Path, without: str = "", **environment: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the demo on kind; gives how it ended, and the commands that the stand-ins were given."""
    calls, programs = folder / "calls", folder / "bin"
    programs.mkdir()
    for name in USED:
        (programs / name).symlink_to(str(shutil.which(name)))
    for name, text in STAND_INS.items():
        if name != without:
            path = programs / name
            path.write_text(f'#!/bin/bash\n[ {name} = python ] || echo "{name} $*" >>{calls}\n{text}\n')
            path.chmod(0o755)
    done = subprocess.run(
        ["bash", str(REPOSITORY / "tests" / "demo" / "demo.sh")],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env={"PATH": str(programs), "BIN": str(programs), "CLUSTER": "kind", "PYTHON": sys.executable}
        | {"KIND_STATUS": "0", "DOCKER_STATUS": "0", "PADDOCK_CACHE": str(folder)}
        | environment,
    )
    return done, calls.read_text().splitlines() if calls.exists() else []


def test_a_kind_cluster_gets_images_and_model_and_serves_on_the_cpu(tmp_path: Path) -> None:
    done, calls = demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    kubeconfig = REPOSITORY / "build" / "kind.kubeconfig"
    expected = [
        f"kind create cluster --name paddock --kubeconfig {kubeconfig}",
        f"kind export kubeconfig --name paddock --kubeconfig {kubeconfig}",
        "kind load docker-image --name paddock ghcr.io/paddock-dev/operator:0.1.0",
        "kind load docker-image --name paddock ghcr.io/paddock-dev/agent:0.1.0",
        "docker cp /models/gemma.gguf paddock-control-plane:/var/lib/paddock/models/gemma.gguf",
    ]
    assert [one for one in calls if one in expected] == expected
    (install,) = [one for one in calls if one.startswith("helm")]
    assert 'agents=[{"name":"cpu"}]' in install
    assert any("patch -n demo mdep gemma" in one and '"allowCPU":true' in one for one in calls)
    assert not any("use-context" in one for one in calls), "the user's kubeconfig is changed"
    assert "kind delete cluster --name paddock" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == "PADDOCK DEMO OK model=gemma node=paddock-control-plane device=CPU id=- tokens=5"


@pytest.mark.parametrize("lacking", ["kind", "docker", "kubectl", "helm"])
def test_a_program_that_lacks_is_named_before_anything_is_done(tmp_path: Path, lacking: str) -> None:
    done, calls = demo(tmp_path, without=lacking)
    assert done.returncode == 1
    assert f"PADDOCK DEMO FAILED CLUSTER=kind needs {lacking} in PATH" in done.stderr
    assert calls == []


def test_a_container_engine_that_does_not_answer_is_told(tmp_path: Path) -> None:
    done, calls = demo(tmp_path, DOCKER_STATUS="1")
    assert done.returncode == 1
    assert "docker info does not answer" in done.stderr
    assert calls == ["docker info"]


def test_a_kind_cluster_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    done, calls = demo(tmp_path, KIND_STATUS="3")
    assert done.returncode == 1
    assert "PADDOCK DEMO FAILED the kind cluster" in done.stderr
    assert not any(one.startswith("helm") for one in calls)


@pytest.mark.parametrize(("cluster", "builds"), [("kind", False), ("current", False), ("local", True)])
def test_only_the_local_cluster_is_built(cluster: str, builds: bool) -> None:
    command = ["make", "-n", "-C", str(REPOSITORY), "demo", f"CLUSTER={cluster}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert ("tests/cluster/build.sh" in done.stdout) is builds
