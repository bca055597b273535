"""Writes docs/benchmarks.md from the figures."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import AIMS
from cluster.settings import read_versions
from paddock import __version__

if TYPE_CHECKING:
    from bench.figures import Figures

INTRODUCTION = """# Benchmarks

Written by `make bench` (`python -m bench --page`); the figures are also in `build/bench.json`.

A real etcd and API server, with the controllers for garbage, namespaces and volumes; a real operator process with the
chart's rights, held by the API server's usual priority and fairness; real leader election where takeovers are
measured. Nodes, kubelets and agents' devices are pretended by the process that measures, which takes processor time
from what it measures: 4 nodes with 8 cards of 80 GiB, each deployment needs 2 GiB. The baseline is the same machine in
the same run: a Pod that a client creates itself.

"""


def page(figures: Figures, note: str = "") -> str:
    """Give the page."""
    versions = read_versions()
    stack = f"Kubernetes {versions['KUBERNETES_VERSION']}, etcd {versions['ETCD_VERSION']}, Python"
    words = {True: "yes", False: "**no**"}
    rows = [
        f"| {aim.meaning} | {figures.values[name]:g} {aim.unit} | {aim.aim:g} | {words[figures.met(name)]} |"
        for name, aim in AIMS.items()
        if name in figures.values
    ]
    where = f"Paddock {__version__}, {stack} {platform.python_version()}, {machine()}."
    return (
        INTRODUCTION
        + f"{datetime.now(UTC):%Y-%m-%d}, {where} {note}".rstrip()
        + "\n\n| figure | measured | aim | met |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def machine() -> str:
    """Say what this machine is."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB"
