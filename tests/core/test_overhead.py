"""What is learned of servers: kept, bounded, and planned with; never less than the most that was seen."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.gpu import GPUStatus, Learned
from paddock.api.modeldeployment import Policy
from paddock.api.vocabulary import GRANULE, Reason
from paddock.core.evidence import Evidence, parse_log
from paddock.core.fleet import device_of
from paddock.core.images import build_of
from paddock.core.inventory import merge
from paddock.core.learning import learned_of
from paddock.core.overhead import (
    LEARNED_MARGIN,
    LEAST_CONTEXT,
    MOST_CONTEXT,
    MOST_LEARNED,
    MOST_LOWERED,
    OVERHEAD,
    learn,
    more_than_planned,
)
from paddock.core.placement import Placement, place
from paddock.core.request import Request
from support.builders import GIB, INTEL, MIB, RTX_4080, device, fleet, record

SIZES = st.integers(-1, 2**50)
SEEN = st.lists(
    st.builds(
        Learned,
        backend=st.sampled_from(["CUDA", "Vulkan", "Unheard"]),
        build=st.sampled_from([f"b{number}" for number in range(20)]),
        buffers_bytes=SIZES,
        process_bytes=SIZES | st.none(),
    ),
    max_size=30,
)


def cuda(buffers: int = 0, process: int | None = None, build: str = "b1") -> Learned:
    return Learned(backend="CUDA", build=build, buffers_bytes=buffers, process_bytes=process)


@given(SEEN, st.sampled_from([*OVERHEAD, "Unheard"]))
def test_what_is_planned_covers_what_was_seen_within_bounds(seen: list[Learned], backend: str) -> None:
    known: list[Learned] = []
    for one in seen:
        known = learn(known, one)
        assert len(known) <= MOST_LEARNED
        assert len({(each.backend, each.build) for each in known}) == len(known)
    table = OVERHEAD.get(backend, max(OVERHEAD.values()))
    planned = table + more_than_planned(backend, known)
    mine = [one for one in known if one.backend == backend]
    for one in mine:
        assert planned >= min(one.buffers_bytes, MOST_CONTEXT)
        assert planned >= (one.process_bytes or 0)
    assert LEAST_CONTEXT <= planned <= MOST_CONTEXT + table
    assert planned >= table - MOST_LOWERED
    if not mine:
        assert planned == table


def test_a_log_raises_the_table_s_figure_and_a_driver_takes_its_place() -> None:
    assert more_than_planned("CUDA", []) == 0
    assert more_than_planned("CUDA", [cuda(100 * MIB)]) == 100 * MIB
    assert more_than_planned("CUDA", [cuda(0, 300 * MIB)]) == 300 * MIB + LEARNED_MARGIN - 512 * MIB
    assert (
        more_than_planned("CUDA", [cuda(0, 300 * MIB), cuda(0, 900 * MIB, "b2")])
        == 900 * MIB + LEARNED_MARGIN - 512 * MIB
    )
    assert more_than_planned("CUDA", [cuda(0, 0)]) == LEAST_CONTEXT - 512 * MIB
    assert more_than_planned("Vulkan", [cuda(100 * MIB, 900 * MIB)]) == 0


def test_the_most_is_kept_and_the_oldest_build_is_forgotten() -> None:
    known = learn(learn([], cuda(5, None)), cuda(3, 7))
    assert known == [cuda(5, 7)]
    assert learn(known, cuda(1, 2)) == known
    for number in range(MOST_LEARNED):
        known = learn(known, cuda(number + 1, build=f"b{number + 2}"))
    assert [one.build for one in known] == [f"b{number + 2}" for number in range(MOST_LEARNED)]
    assert learn([], cuda(2**60, 2**60)) == [cuda(MOST_CONTEXT, MOST_CONTEXT)]


def test_an_agent_s_report_takes_nothing_away() -> None:
    stored = GPUStatus.model_validate({"node": "n", "name": "CUDA0", "type": "Discrete", "backends": ["CUDA"]})
    stored = stored.model_copy(update={"learned": [cuda(100 * MIB)]})
    observed = stored.model_copy(update={"learned": []})
    assert merge(observed, stored).learned == stored.learned
    assert device_of("g", merge(observed, stored)).more == 100 * MIB


LOG = """0.00.100.000 I llama_prepare_model_devices: using device CUDA0 (RTX) (0000:02:00.0) - 5000 MiB free
0.00.200.000 I load_tensors:        CUDA0 model buffer size =   700.00 MiB
0.00.300.000 I llama_kv_cache:      CUDA0 KV buffer size =   200.00 MiB
0.00.400.000 I sched_reserve:      CUDA0 compute buffer size =   103.00 MiB
"""
PROVEN = Evidence(True, Reason.BUFFERS_ON_DEVICE, "")


def test_buffers_above_their_estimate_are_learned() -> None:
    made = record(RTX_4080, device_buffers=900 * MIB)
    assert learned_of(made, parse_log(LOG), PROVEN) == Learned(backend="CUDA", build="b11434", buffers_bytes=103 * MIB)
    assert learned_of(replace(made, device_buffers=1002 * MIB), parse_log(LOG), PROVEN) is None  # rounding of a log
    assert learned_of(replace(made, device_buffers=2000 * MIB), parse_log(LOG), PROVEN) is None
    assert learned_of(replace(made, device_buffers=0), parse_log(LOG), PROVEN) is None  # an older operator's record
    assert learned_of(made, parse_log(""), PROVEN) is None
    assert learned_of(made, parse_log(LOG), Evidence(False, Reason.OUT_OF_MEMORY, "")) is not None
    assert learned_of(made, parse_log(LOG), Evidence(False, Reason.WRONG_DEVICE, "")) is None


@pytest.mark.parametrize(
    ("image", "build"),
    [
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b11434", "b11434"),
        ("registry:5000/x/llama:mine", "mine"),
        ("registry/x@sha256:abc", "sha256:abc"),
        ("llama", "latest"),
    ],
)
def test_the_build_of_an_image(image: str, build: str) -> None:
    assert build_of(image) == build


def test_each_device_is_asked_for_the_need_of_its_backend_and_of_what_was_learned() -> None:
    request = Request(need=9 * GIB, needs={"CUDA": 3 * GIB, "Vulkan": 4 * GIB + 1}, policy=Policy.BEST_FIT)
    assert request.need_on(RTX_4080) == 3 * GIB
    assert request.need_on(INTEL) == 4 * GIB + GRANULE
    assert request.need_on(replace(RTX_4080, backend="ROCm")) == 9 * GIB
    assert request.need_on(replace(RTX_4080, backend="ROCm", more=1)) == 9 * GIB + GRANULE
    assert request.need_on(replace(RTX_4080, more=100)) == 3 * GIB + GRANULE
    assert request.need_on(replace(RTX_4080, more=-400 * MIB)) == 3 * GIB - GRANULE
    assert request.least_need <= 3 * GIB - MOST_LOWERED
    tight, roomy = (
        device("node1-a", total=4 * GIB, more=2 * GIB),
        device("node1-b", total=9 * GIB, pci_id="0000:02:00.0"),
    )
    found = place(request, fleet(tight, roomy))
    assert isinstance(found, Placement)
    assert (found.device, found.need) == (roomy, 3 * GIB)
    assert "needs 3 GiB of" in found.reason
    assert [one.detail for one in found.judged if one.device is tight] == ["needs 5 GiB, has 4 GiB when empty"]
