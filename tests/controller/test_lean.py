"""The operator decides first and imports later: what it does not need for a first decision is not there yet."""

import os
import subprocess
import sys

HEAVY = {"kopf", "yaml", "dateutil", "urllib3", "kubernetes.client", "kubernetes.aio.config.kube_config"}


def test_the_program_starts_without_what_it_needs_later() -> None:
    code = f"import sys, paddock.controller.operate; print(*sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.split() == []


def test_kopf_and_the_ways_to_a_cluster_are_found_all_the_same() -> None:
    """Packages whose own module is passed over must still give their submodules to whoever comes later."""
    code = (
        "import paddock.controller.operate, paddock.controller.handlers; "
        "from kubernetes.aio.config.kube_config import load_kube_config; print(load_kube_config.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.split() == ["load_kube_config"]
