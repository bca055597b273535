"""Which image serves which device."""

import pytest

from paddock.core.images import BUILD, CPU, TABLE, allowed, backends_of, driver_major, known_backends, server_image


@pytest.mark.parametrize(
    ("backend", "tag"),
    [
        ("CUDA", "server-cuda"),
        ("ROCm", "server-rocm"),
        ("Vulkan", "server-vulkan"),
        ("SYCL", "server-intel"),
        ("MUSA", "server-musa"),
        (CPU, "server"),
    ],
)
def test_each_backend_has_an_image_of_the_tested_build(backend: str, tag: str) -> None:
    assert server_image(backend) == f"ghcr.io/ggml-org/llama.cpp:{tag}-{BUILD}"


def test_no_image_has_a_rolling_tag() -> None:
    assert all(row.image.endswith(f"-{BUILD}") for row in TABLE)


@pytest.mark.parametrize(
    ("driver", "served"),
    [("570.133.07", True), ("525.60.13", True), ("470.256.02", False), (None, True), ("odd", True)],
)
def test_cuda_needs_a_driver_that_runs_it(driver: str | None, served: bool) -> None:
    assert (server_image("CUDA", driver=driver) is not None) is served


def test_a_processor_without_an_image_is_told_by_none() -> None:
    assert server_image("CUDA", architecture="arm64") is None
    assert server_image("Vulkan", architecture="arm64") is not None
    assert server_image("CANN") is None


def test_an_override_goes_before_the_table_whatever_driver_and_processor() -> None:
    mine = {"CUDA": "registry.example/llama:1", "CANN": "registry.example/cann:1"}
    assert server_image("CUDA", architecture="arm64", driver="470.1", overrides=mine) == "registry.example/llama:1"
    assert server_image("CANN", overrides=mine) == "registry.example/cann:1"
    assert known_backends(mine) >= {"CUDA", "CANN", CPU}
    assert "CANN" not in known_backends()


def test_users_may_name_known_images_and_those_of_the_administrator() -> None:
    mine = {"CUDA": "registry.example/llama:1"}
    assert allowed(f"ghcr.io/ggml-org/llama.cpp:server-{BUILD}", [])
    assert allowed("registry.example/llama:1", [], mine)
    assert allowed("registry.example/team/llama@sha256:00", ["registry.example/team/*"])
    assert not allowed("registry.example/llama:1", [])
    assert not allowed("ghcr.io/ggml-org/llama.cpp:server", [])
    assert not allowed("evil.example/registry.example/team/x", ["registry.example/team/*"])


@pytest.mark.parametrize(
    ("version", "major"), [("570.133.07", 570), ("12", 12), ("", None), (None, None), ("v5.1", None)]
)
def test_driver_majors(version: str | None, major: int | None) -> None:
    assert driver_major(version) == major


@pytest.mark.parametrize(
    ("image", "backends"),
    [
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b11434", {"CUDA"}),
        ("registry:5000/llama.cpp:server-vulkan-b11434", {"Vulkan"}),
        ("registry:5000/llama.cpp:server-b11434", set()),
        ("llama.cpp:server-intel-b1@sha256:abc", {"SYCL"}),
        ("example.com/mine:1.2", None),
        ("example.com/mine:server-special-b1", None),
        ("example.com/server-cuda", None),
    ],
)
def test_a_users_image_tells_its_backends_in_llama_cpps_manner(image: str, backends: set[str] | None) -> None:
    found = backends_of(image)
    assert (None if backends is None else frozenset(backends)) == found
