"""Texts of Linux and its graphics drivers, as they were recorded or as the kernel's documents give them."""

import pytest

from paddock.core.usage import STEP, Owner, Told, drm_memory, follow, kfd_card, kfd_memory, owner_of, xid_in_words

MIB = 1024 * 1024
UID = "7b0e6c1d-3a52-4c8f-9d27-5f1e0b9a6c34"
CONTAINER = "3f" * 32
V1 = f"""\
12:memory:/kubepods/burstable/pod{UID}/{CONTAINER}
11:cpu,cpuacct:/kubepods/burstable/pod{UID}/{CONTAINER}
1:name=systemd:/kubepods/burstable/pod{UID}/{CONTAINER}
0::/
"""
SYSTEMD = f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    "text",
    [
        V1,
        f"4:memory:/paddock/node2/kubepods/besteffort/pod{UID}/{CONTAINER}\n",
        f"0::/kubepods.slice/kubepods-besteffort.slice/{SYSTEMD}/cri-containerd-{CONTAINER}.scope\n",
        f"0::/kubepods.slice/kubepods-besteffort.slice/{SYSTEMD}/crio-{CONTAINER}.scope/container\n",
        f"0::/../../{SYSTEMD}/cri-containerd-{CONTAINER}.scope\n",  # seen from another container's cgroup namespace
        f"0::/system.slice/containerd.service/{SYSTEMD}:cri-containerd:{CONTAINER}\n",
        f"0::/docker/{'ab' * 32}/kubelet.slice/kubelet-{SYSTEMD}/cri-containerd-{CONTAINER}.scope\n",  # kind
        f"0::/kubepods/pod{UID}/{CONTAINER}/inner/pod00000000-0000-4000-8000-000000000000/{'00' * 32}\n",
    ],
)
def test_pod_and_container_of_a_process(text: str) -> None:
    assert owner_of(text) == Owner(UID, CONTAINER)


@pytest.mark.parametrize(
    "text",
    ["", "0::/\n", "0::/user.slice/user-1000.slice/session-2.scope\n", "0::/init.scope/podcast\n", "nonsense", ":::"],
)
def test_what_is_no_pod_has_no_owner(text: str) -> None:
    assert owner_of(text) == Owner()


def test_a_static_pod_has_a_hash_for_a_uid() -> None:
    text = f"0::/kubepods.slice/kubepods-burstable-pod{'0a' * 16}.slice/cri-containerd-{CONTAINER}.scope"
    assert owner_of(text).pod == "0a" * 16


AMDGPU = """\
pos:\t0
flags:\t02100002
drm-driver:\tamdgpu
drm-client-id:\t51
drm-pdev:\t0000:03:00.0
pasid:\t32771
drm-memory-vram:\t4242424 KiB
drm-memory-gtt: \t2048 KiB
amd-memory-visible-vram:\t1024 KiB
drm-engine-gfx:\t123 ns
"""
XE = """\
drm-driver:\txe
drm-client-id:\t7
drm-pdev:\t0000:00:02.0
drm-total-system:\t0
drm-total-vram0:\t900 MiB
drm-resident-vram0:\t800 MiB
drm-resident-gtt:\t5 MiB
"""
I915 = "drm-client-id: 9\ndrm-pdev: 0000:04:00.0\ndrm-resident-local0: 1048576\ndrm-resident-system0: 9\n"


def test_memory_of_clients_of_graphics_drivers() -> None:
    other = AMDGPU.replace("client-id:\t51", "client-id:\t52").replace("4242424", "100")
    assert drm_memory([AMDGPU, AMDGPU, other, XE, I915, "pos: 0\n"]) == {
        "0000:03:00.0": (4242424 + 100) * 1024,  # two descriptors of one client count once
        "0000:00:02.0": 800 * MIB,  # resident, not total
        "0000:04:00.0": MIB,
    }


@pytest.mark.parametrize("text", ["drm-pdev:\n", "drm-pdev: 0000:03:00.0\ndrm-memory-vram: many KiB\n", "drm-pdev"])
def test_broken_fdinfo_is_nothing(text: str) -> None:
    assert not any(drm_memory([text]).values())


PROPERTIES = "cpu_cores_count 0\nsimd_count 304\nlocation_id 768\ndomain 0\nvendor_id 4098\n"


def test_memory_of_processes_of_amds_compute_driver() -> None:
    assert kfd_card(PROPERTIES) == "0000:03:00.0"
    assert kfd_card(PROPERTIES.replace("768", "33049").replace("domain 0", "domain 1")) == "0001:81:03.1"
    assert kfd_card("cpu_cores_count 16\nsimd_count 0\nlocation_id 0\n") is None
    assert kfd_card("simd_count many") is None
    files = {"vram_51432": "4294967296\n", "vram_7": "5", "sdma_51432": "77", "pasid": "3"}
    assert kfd_memory(files, {"51432": "0000:03:00.0"}) == {"0000:03:00.0": 4 << 30}


def told(*values: int) -> list[int]:
    """Give what others are told of numbers seen one after the other."""
    out, state = [], None
    for value in values:
        state = follow(state, value)
        out.append(state.told)
    return out


def test_a_number_is_told_when_it_moved_by_a_step() -> None:
    assert told(0, 100 * MIB, STEP - 1, STEP, STEP + 5) == [0, 0, 0, STEP, STEP]
    assert told(2 * STEP, STEP + 1, STEP) == [2 * STEP, 2 * STEP, STEP]


def test_a_number_that_comes_to_rest_is_told_exactly_once() -> None:
    assert told(0, 9, 9, 9, 9, 9) == [0, 0, 0, 0, 9, 9]
    jitter = told(0, *([5] * 9), *([7] * 9), *([3] * 9))
    assert jitter[-1] == 5, "small moves after that are not told"
    assert len(set(jitter)) == 2
    assert told(0, *([5] * 9), 2 * STEP, *([2 * STEP + 1] * 9))[-1] == 2 * STEP + 1


def test_a_number_that_swings_around_a_step_is_not_told_each_time() -> None:
    values = [STEP - 1, STEP + 1] * 50
    assert len(set(told(*values))) == 1


def test_states_compare() -> None:
    assert follow(None, 5) == Told(5, 5)


def test_errors_have_words() -> None:
    assert xid_in_words(79) == "Xid 79, the card fell off the bus"
    assert xid_in_words(999) == "Xid 999"
