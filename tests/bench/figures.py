"""The figures of the bench: what each is, what it should be, and how they are told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Aim(NamedTuple):
    """What a figure means and what it should be."""

    meaning: str
    unit: str
    aim: float
    better: Literal["lower", "higher"] = "lower"


AIMS: dict[str, Aim] = {
    "create_p50": Aim("create -> Pod object, one at a time, median", "ms", 30),
    "create_p95": Aim("create -> Pod object, one at a time, 95th percentile", "ms", 80),
    "create_200": Aim("200 created at once -> all Pod objects", "s", 4),
    "bare_pod_p50": Aim("baseline: a bare Pod created by a client, median", "ms", 10),
    "bare_pods_200": Aim("baseline: 200 bare Pods created at once", "s", 1),
    "create_p50_ratio": Aim("create_p50 / bare_pod_p50", "x", 4.5),
    "create_200_ratio": Aim("create_200 / bare_pods_200", "x", 6.7),
    "rest_writes_200": Aim("writes per minute at rest with 200 that serve", "1/min", 0),
    "restart_200": Aim("clean restart with 200: process start -> first decision", "s", 1),
    "restart_200_writes": Aim("writes of a restart with 200", "", 0),
    "restart_1000": Aim("clean restart with 1000: process start -> first decision", "s", 1),
    "restart_1000_writes": Aim("writes of a restart with 1000", "", 0),
    "restart_killed": Aim("kill -9, same pod starts again, 1000: process start -> first decision", "s", 15),
    "takeover_stopped": Aim("SIGTERM of the leader -> first decision of a standby, 1000", "s", 1),
    "takeover_killed": Aim("kill -9 of the leader -> first decision of a standby, 1000", "s", 15),
    "takeover_writes": Aim("writes of both takeovers", "", 0),
    "operator_rss_0": Aim("operator's memory without deployments", "MB", 100),
    "operator_rss_1000": Aim("operator's memory with 1000 that serve", "MB", 140),
    "operator_cpu_0": Aim("operator's processor time at rest without deployments", "% of a core", 1),
    "operator_cpu_1000": Aim("operator's processor time at rest with 1000", "% of a core", 3),
    "place_p50_100": Aim("one decision among 100 GPUs, all policies, median", "ms", 0.5),
    "place_p99_100": Aim("one decision among 100 GPUs, all policies, 99th percentile", "ms", 1),
    "refuse_p99_100": Aim("one refusal among 100 GPUs, 99th percentile", "ms", 1),
    "place_first_100": Aim("the first decision of a kind among 100 GPUs, 99th percentile", "ms", 1),
    "fleet_change_100": Aim("one GPU of 100 changes, and the next decision, median", "ms", 1),
    "place_p50_1000": Aim("one decision among 1000 GPUs, all policies, median", "ms", 1),
    "place_p99_1000": Aim("one decision among 1000 GPUs, all policies, 99th percentile", "ms", 1),
    "refuse_p99_1000": Aim("one refusal among 1000 GPUs, 99th percentile", "ms", 1),
    "place_first_1000": Aim("the first decision of a kind among 1000 GPUs, 99th percentile", "ms", 1),
    "fleet_change_1000": Aim("one GPU of 1000 changes, and the next decision, median", "ms", 1),
    "place_p50_10000": Aim("one decision among 10000 GPUs, all policies, median", "ms", 10),
    "place_p99_10000": Aim("one decision among 10000 GPUs, all policies, 99th percentile", "ms", 10),
    "refuse_p99_10000": Aim("one refusal among 10000 GPUs, 99th percentile", "ms", 10),
    "place_first_10000": Aim("the first decision of a kind among 10000 GPUs, 99th percentile", "ms", 10),
    "fleet_change_10000": Aim("one GPU of 10000 changes, and the next decision, median", "ms", 1),
    "fleet_memory_10000": Aim("memory for the index over 10000 GPUs", "MB", 20),
    "move_p99_100": Aim("a search for moves among 100 full GPUs, 99th percentile", "ms", 100),
    "move_p99_1000": Aim("a search for moves among 1000 full GPUs, 99th percentile", "ms", 100),
    "move_p99_10000": Aim("a search for moves among 10000 full GPUs, 99th percentile", "ms", 100),
    "evict_p99_100": Aim("a search for evictions among 100 full GPUs, 99th percentile", "ms", 100),
    "evict_p99_1000": Aim("a search for evictions among 1000 full GPUs, 99th percentile", "ms", 100),
    "evict_p99_10000": Aim("a search for evictions among 10000 full GPUs, 99th percentile", "ms", 100),
    "agent_rss": Aim("agent's memory after a listing with llama.cpp's libraries", "MB", 60),
    "agent_watch_cpu": Aim("agent's watching of 16 GPUs with 64 processes, pretend driver", "% of a core", 1),
    "agent_cpu": Aim("agent and its watching process with the same, all in all", "% of a core", 1),
    "proof_p50": Aim("server up -> Verified, median; the driver's word comes 1 s late", "ms", 2000),
    "proof_worst": Aim("server up -> Verified, worst of 24; the driver's word comes 1 s late", "ms", 2000),
    "proof_many": Aim("24 servers up at once -> the last one Verified", "ms", 2000),
    "agent_listing": Aim("agent's full listing in its child process", "s", 2),
    "header_small": Aim("header of a small model", "ms", 1),
    "header_vocabulary": Aim("header with 262144 tokens and as many merges", "ms", 100),
    "header_tensors": Aim("header with 10000 tensors", "ms", 100),
    "header_memory": Aim("memory for the header with 262144 tokens", "MB", 32),
    "fetch_speed": Aim("fetch of 500 MB from a local hub, hashed, checked, brought to the disk", "MB/s", 300, "higher"),
    "fetch_cpu": Aim("processor time of it, for a GB", "s", 3),
    "fetch_memory": Aim("most memory of it", "MB", 64),
    "fetch_ratio": Aim("fetch_speed / the faster of curl and huggingface-hub", "x", 0.9, "higher"),
    "fetch_curl_speed": Aim("baseline: curl, which checks nothing", "MB/s", 300, "higher"),
    "fetch_curl_cpu": Aim("baseline: curl, processor time for a GB", "s", 3),
    "fetch_checked_speed": Aim("baseline: curl, then openssl and sync", "MB/s", 200, "higher"),
    "fetch_checked_cpu": Aim("baseline: curl, then openssl and sync, processor time for a GB", "s", 3),
    "fetch_checked_ratio": Aim("fetch_speed / curl, then openssl and sync", "x", 0.9, "higher"),
    "fetch_piped_speed": Aim("baseline: curl, beside it openssl in a pipe, then sync", "MB/s", 200, "higher"),
    "fetch_piped_cpu": Aim("baseline: curl, beside it openssl, processor time for a GB", "s", 3),
    "fetch_piped_ratio": Aim("fetch_speed / curl, beside it openssl in a pipe, then sync", "x", 0.9, "higher"),
    "fetch_hub_speed": Aim("baseline: huggingface-hub", "MB/s", 300, "higher"),
    "fetch_hub_cpu": Aim("baseline: huggingface-hub, processor time for a GB", "s", 3),
    "first_known": Aim("apply -> first token, the node has the commit's file", "s", 5),
    "first_asked": Aim("apply -> first token, the node has what a new branch names", "s", 8),
    "first_pod": Aim("baseline: a bare Pod with the same container -> first token", "s", 5),
    "first_hand": Aim("baseline: llama-server started by hand -> first token", "s", 3),
    "first_more": Aim("first_known - first_hand", "s", 2),
    "gguf_small": Aim("baseline: package gguf, small model", "ms", 10),
    "gguf_vocabulary": Aim("baseline: package gguf, 262144 tokens and as many merges", "ms", 60_000),
    "gguf_tensors": Aim("baseline: package gguf, 10000 tensors", "ms", 10_000),
    "gguf_memory": Aim("baseline: package gguf, memory for 262144 tokens", "MB", 1000),
    "estimate_median": Aim("estimate, warm, median of the published shapes", "ms", 1),
    "estimate_slowest": Aim("estimate, warm, slowest of the published shapes", "ms", 5),
}


@dataclass
class Figures:
    """What was measured."""

    values: dict[str, float] = field(default_factory=dict)

    def put(self, name: str, value: float) -> None:
        """Note a figure; says it at once, since the whole takes minutes."""
        assert name in AIMS, name
        self.values[name] = round(value, 3)
        print(self.line(name), flush=True)  # noqa: T201 this is what the bench is for

    def line(self, name: str) -> str:
        """Give one line of the table."""
        aim, value = AIMS[name], self.values[name]
        word = "ok" if self.met(name) else "MISSED"
        return f"{aim.meaning:<72} {value:>9.2f} {aim.unit:<12} aim {aim.aim:>5g}  {word}"

    def met(self, name: str) -> bool:
        """Tell whether the aim is met."""
        aim, value = AIMS[name], self.values[name]
        return value <= aim.aim if aim.better == "lower" else value >= aim.aim

    def write(self, path: Path) -> None:
        """Write them as JSON."""
        path.parent.mkdir(exist_ok=True)
        out = {
            name: {"value": value, "unit": AIMS[name].unit, "aim": AIMS[name].aim, "better": AIMS[name].better}
            for name, value in self.values.items()
        }
        path.write_text(json.dumps(out, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Figures:
        """Read what `write` wrote."""
        return cls({name: one["value"] for name, one in json.loads(path.read_text()).items()})
