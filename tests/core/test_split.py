"""Models in several files: which files they are, and that hostile numbers lead nowhere."""

from collections.abc import Callable

import pytest

from paddock.core.gguf import MAX_TENSORS, GgufError, GgufMetadata, Tensor, Value
from paddock.core.split import part_names, read_parts

TENSOR = Tensor("t", (1,), 0, 0, 4)


def part(tensors: int = 1, **split: Value) -> GgufMetadata:
    values = {f"split.{name}": value for name, value in split.items()}
    return GgufMetadata(3, values, (TENSOR,) * tensors, 32, 64, 128)


def test_a_file_that_is_not_split_stands_for_itself() -> None:
    assert part_names("m.gguf", part()) == ["m.gguf"]
    assert part_names("m.gguf", part(count=1, no=0)) == ["m.gguf"]
    assert part_names("odd-00001-of-00002.gguf", part()) == ["odd-00001-of-00002.gguf"]


def test_the_files_of_a_split_model_are_named_after_the_first() -> None:
    names = part_names("m-00001-of-00003.gguf", part(count=3, no=0))
    assert names == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.mark.parametrize(("name", "first"), [("m-00002-of-00003.gguf", "m"), ("odd.gguf", "NAME")])
def test_a_later_file_names_the_first(name: str, first: str) -> None:
    with pytest.raises(GgufError, match=f"name the first part, {first}-00001-of-00003.gguf"):
        part_names(name, part(count=3, no=1))


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("m.gguf", 3, "must be called NAME-00001-of-00003.gguf"),
        ("m-00001-of-00004.gguf", 3, "must be called"),
        ("m-00002-of-00003.gguf", 3, "must be called"),
        ("m-1-of-3.gguf", 3, "must be called"),
        ("m-00001-of-01001.gguf", 1001, "at most 1000"),
        ("m-00001-of-65535.gguf", 65535, "at most 1000"),
    ],
)
def test_names_and_counts_that_do_not_fit(name: str, count: int, message: str) -> None:
    with pytest.raises(GgufError, match=message) as raised:
        part_names(name, part(count=count, no=0))
    assert raised.value.kind == "ModelUnsupported"


def reader(parts: dict[str, GgufMetadata], asked: list[str]) -> Callable[[str], GgufMetadata]:
    def read(name: str) -> GgufMetadata:
        asked.append(name)
        return parts[name]

    return read


def test_all_files_are_read_in_order() -> None:
    asked: list[str] = []
    names = [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    parts = {name: part(count=3, no=number) for number, name in enumerate(names)}
    assert read_parts(names[0], reader(parts, asked)) == list(parts.values())
    assert asked == names


def test_reading_ends_at_the_limit_of_tensors() -> None:
    asked: list[str] = []
    names = [f"m-{number:05}-of-00900.gguf" for number in range(1, 901)]
    parts = {name: part(MAX_TENSORS // 2, count=900, no=number) for number, name in enumerate(names[:3])}
    with pytest.raises(GgufError, match="hold more than"):
        read_parts(names[0], reader(parts, asked))
    assert len(asked) == 3
