"""Measures operator and agent on a real API server: `python -m bench [--page] [--only NAME]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.agent import measure_agent
from bench.beside import measure_beside
from bench.fetching import measure_fetching
from bench.figures import Figures
from bench.first import measure_first_token
from bench.header import measure_header
from bench.load import DEPLOYMENTS, NAMESPACE, PODS, Load
from bench.moving import measure_moves
from bench.page import page
from bench.placing import measure_placement
from bench.proof import measure_proof
from cluster.settings import REPOSITORY
from support.apiserver import missing_programs
from support.client import eventually
from support.harness import API, Plane, plane
from support.helm import missing_program
from support.pretend_agent import card

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.operator_process import Operator

LEASE_SECONDS = 15
REST_SECONDS = 20
RESULT = REPOSITORY / "build" / "bench.json"


def percentile(values: list[float], share: float) -> float:
    """Give the value below which this share of the values is."""
    return sorted(values)[min(len(values) - 1, round(share * len(values)))]


class Bench:
    """One run: what is measured with one API server, in this order."""

    def __init__(self, site: Plane, figures: Figures) -> None:
        self.plane, self.figures = site, figures

    def run(self) -> None:
        """Measure everything."""
        site = self.plane
        site.client.do("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        site.kubelet.paused = True
        operator = self.start()
        for number in range(4):
            site.node(f"node{number}", [card(slot, 80) for slot in range(8)])
        eventually(lambda: len(site.client.items(f"{API}/gpus")) == 32, 20)
        self.rest(operator, "operator_cpu_0", "operator_rss_0")
        asyncio.run(self.creates())
        self.serve_all(230)
        self.figures.put("rest_writes_200", self.rest(operator) * 60 / REST_SECONDS)
        operator = self.restart(operator, "200")
        asyncio.run(self.more(770))
        self.serve_all(1000)
        self.rest(operator, "operator_cpu_1000", "operator_rss_1000")
        operator = self.restart(operator, "1000")
        self.takeovers(operator)

    def start(self, name: str = "operator-a", *, ready: bool = True) -> Operator:
        """Start an operator as the chart does."""
        return self.plane.operator(pod_name=name, leader_election="true", lease_seconds=LEASE_SECONDS, ready=ready)

    async def creates(self) -> None:
        """Measure from the creation to the Pod object, beside bare Pods."""
        put = self.figures.put
        async with Load(self.plane.server) as load:
            await load.deployment("first")  # makes the namespace's claims
            await asyncio.sleep(2)
            bare = await load.one_at_a_time("pod", 30, 0.1)
            put("bare_pod_p50", statistics.median(bare) * 1000)
            bare_many = await load.at_once("pod", 200)
            put("bare_pods_200", bare_many)
            await load.delete(PODS, "bench=bare")
            await asyncio.sleep(2)
            ours = await load.one_at_a_time("deployment", 30, 0.3)
            put("create_p50", statistics.median(ours) * 1000)
            put("create_p95", percentile(ours, 0.95) * 1000)
            await asyncio.sleep(1)
            many = await load.at_once("deployment", 199)
            put("create_200", many)
            put("create_p50_ratio", statistics.median(ours) / statistics.median(bare))
            put("create_200_ratio", many / bare_many)

    async def more(self, count: int) -> None:
        """Create more deployments."""
        async with Load(self.plane.server) as load:
            await load.at_once("deployment", count, "more")

    def serve_all(self, count: int) -> None:
        """Let the pretend kubelet run all pods, and wait until every deployment serves and all is quiet."""
        kubelet = self.plane.kubelet
        kubelet.paused = False
        for key in list(kubelet.pods):
            self.plane.background.loop.call_soon_threadsafe(kubelet.look, key)

        def served() -> bool:
            deployments = self.plane.client.items(DEPLOYMENTS)
            ready = [one for one in deployments if one.get("status", {}).get("readyReplicas") == 1]
            return len(ready) == count

        deadline = time.monotonic() + 500
        while not served():
            assert time.monotonic() < deadline, "the deployments do not serve"
            time.sleep(1)
        self.settle()

    def settle(self) -> None:
        """Wait until the leader has written nothing for three seconds."""
        operator = self.plane.operators[-1]
        last, since = -1, time.monotonic()
        while time.monotonic() - since < 3:
            writes = operator.writes()
            if writes != last:
                last, since = writes, time.monotonic()
            time.sleep(0.25)

    def rest(self, operator: Operator, cpu: str = "", memory: str = "") -> int:
        """Do nothing for a while; gives the operator's writes meanwhile."""
        self.settle()
        time.sleep(12)  # past the full look that follows a start
        writes, busy = operator.writes(), processor_seconds(operator.pid)
        time.sleep(REST_SECONDS)
        if cpu:
            self.figures.put(cpu, (processor_seconds(operator.pid) - busy) / REST_SECONDS * 100)
            self.figures.put(memory, resident_megabytes(operator.pid))
        return operator.writes() - writes

    def restart(self, operator: Operator, title: str) -> Operator:
        """Measure a clean restart."""
        operator.terminate()
        operator = self.start("operator-b")
        self.figures.put(f"restart_{title}", operator.wait_until("first decision"))
        self.settle()
        self.figures.put(f"restart_{title}_writes", operator.writes())
        return operator

    def takeovers(self, leader: Operator) -> None:
        """Measure what follows the end of the leader."""
        leader.kill()
        same = self.start("operator-b")
        self.figures.put("restart_killed", same.wait_until("first decision"))
        standby = self.start("operator-c", ready=False)
        standby.wait_until("standing by")
        time.sleep(2)
        moment = time.monotonic()
        same.terminate()
        self.figures.put("takeover_stopped", decided(standby) - moment)
        self.settle()
        writes = standby.writes()
        last = self.start("operator-d", ready=False)
        last.wait_until("standing by")
        time.sleep(2)
        moment = time.monotonic()
        standby.kill()
        self.figures.put("takeover_killed", decided(last) - moment)
        self.settle()
        self.figures.put("takeover_writes", writes + last.writes())


def decided(operator: Operator) -> float:
    """Wait for the first decision; gives when it was."""
    return operator.started + operator.wait_until("first decision", 60)


def processor_seconds(pid: int) -> float:
    """Give the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_megabytes(pid: int) -> float:
    """Give the resident memory of a process, in units of 10^6 bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024 / 1e6


def measure_operator(figures: Figures) -> None:
    """Measure what needs an API server, but no nodes."""
    with tempfile.TemporaryDirectory() as folder, plane(Path(folder), audit=False) as site:
        Bench(site, figures).run()
        measure_proof(site, figures)
        measure_agent(site, figures)


PARTS: dict[str, Callable[[Figures], None]] = {
    "placement": measure_placement,
    "moves": measure_moves,
    "header": measure_header,
    "beside": lambda _: measure_beside(),
    "fetching": measure_fetching,
    "operator": measure_operator,
    "first": measure_first_token,
}


def main() -> int:
    """Run the bench. A missed aim is told and is no failure: it says as much of the machine as of the program."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure operator and agent.")
    parser.add_argument(
        "--page", action="store_true", help="write docs/benchmarks.md from build/bench.json, do nothing else"
    )
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    parser.add_argument("--note", default="", help="a sentence for the page, for example what else ran")
    arguments = parser.parse_args()
    if arguments.page:
        (REPOSITORY / "docs" / "benchmarks.md").write_text(page(Figures.read(RESULT), arguments.note))
        return 0
    missing = missing_programs() or missing_program()
    if missing is not None and arguments.only in (None, "operator"):
        sys.exit(f"bench: {missing}")
    # One part alone renews its own figures only.
    figures = Figures.read(RESULT) if arguments.only is not None and RESULT.exists() else Figures()
    for name, measure in PARTS.items():
        if arguments.only in (None, name):
            measure(figures)
    figures.write(RESULT)
    missed = [name for name in figures.values if not figures.met(name)]
    print(f"\nbuild/bench.json written; {len(missed)} aims missed{': ' if missed else ''}{', '.join(missed)}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
