"""Which files of a repository a quantization means."""

import pytest

from paddock.core.listing import files_of_quantization, siblings_of

NAMES = [
    "README.md",
    "gemma-Q4_K_M.gguf",
    "gemma-Q4_K_S.gguf",
    "gemma-UD-Q4_K_XL.gguf",
    "gemma-BF16-00001-of-00003.gguf",
    "gemma-BF16-00002-of-00003.gguf",
    "gemma-BF16-00003-of-00003.gguf",
    "mmproj-gemma-F16.gguf",
    "Q6_K/gemma-Q6_K-00001-of-00002.gguf",
    "Q6_K/gemma-Q6_K-00002-of-00002.gguf",
    "other/gemma-Q4_K_M.gguf",
]


@pytest.mark.parametrize(
    ("quantization", "files"),
    [
        ("Q4_K_M", ["gemma-Q4_K_M.gguf"]),
        ("q4_k_m", ["gemma-Q4_K_M.gguf"]),
        ("UD-Q4_K_XL", ["gemma-UD-Q4_K_XL.gguf"]),
        ("BF16", [f"gemma-BF16-0000{number}-of-00003.gguf" for number in (1, 2, 3)]),
        ("Q6_K", [f"Q6_K/gemma-Q6_K-0000{number}-of-00002.gguf" for number in (1, 2)]),
    ],
)
def test_a_quantization_means_a_file_or_all_parts_in_order(quantization: str, files: list[str]) -> None:
    assert files_of_quantization(NAMES, quantization) == files


@pytest.mark.parametrize(
    ("names", "quantization", "why"),
    [
        (NAMES, "Q4_K", "no file of the repository is called Q4_K; there are Q6_K/gemma"),
        (NAMES, "F16", "no file of the repository is called F16"),
        (["model.safetensors"], "Q4_0", "it holds no .gguf files"),
        (
            ["a-Q8_0.gguf", "b-Q8_0.gguf"],
            "Q8_0",
            "means 2 models of the repository: name a file",
        ),
        (["a-Q8_0-00002-of-00002.gguf"], "Q8_0", "1 of 2 parts are missing: a-Q8_0-00001-of-00002.gguf"),
    ],
)
def test_what_is_not_clear_is_said_with_what_there_is(names: list[str], quantization: str, why: str) -> None:
    found = files_of_quantization(names, quantization)
    assert isinstance(found, str)
    assert why in found


def test_the_siblings_of_a_part_are_all_parts() -> None:
    assert siblings_of("x-00002-of-00002.gguf") == ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]
    assert siblings_of("x.gguf") == ["x.gguf"]
