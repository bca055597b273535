"""The allocator of compute buffers: what holds of its sizes, and what does not."""

from hypothesis import given
from hypothesis import strategies as st

from paddock.core.allocator import ALIGNMENT, Allocator, aligned

Steps = list[tuple[str, int]]


@st.composite
def plays(draw: st.DrawFn, *, nested: bool = False) -> tuple[Steps, list[int]]:
    """Give steps of takes and gives, and the size of each block; nested ones give the newest block first."""
    count = draw(st.integers(1, 12))
    steps: Steps = []
    live: list[int] = []
    for number in range(count):
        while live and draw(st.booleans()):
            block = live.pop() if nested else live.pop(draw(st.integers(0, len(live) - 1)))
            steps.append(("-", block))
        steps.append(("+", number))
        live.append(number)
    return steps, draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))


def peak(steps: Steps, sizes: list[int]) -> int:
    allocator, places = Allocator(), dict[int, int]()
    for what, block in steps:
        if what == "+":
            places[block] = allocator.take(sizes[block])
        else:
            allocator.give(places[block], sizes[block])
    return allocator.peak


def most_alive(steps: Steps, sizes: list[int]) -> int:
    now = most = 0
    for what, block in steps:
        now += sizes[block] if what == "+" else -sizes[block]
        most = max(most, now)
    return most


@given(plays(), st.integers(2, 9))
def test_a_peak_is_between_what_is_alive_and_all_and_grows_with_all_sizes_alike(
    play: tuple[Steps, list[int]], times: int
) -> None:
    steps, sizes = play
    found = peak(steps, sizes)
    assert most_alive(steps, sizes) <= found <= sum(sizes)
    assert peak(steps, [size * times for size in sizes]) == found * times


@given(plays(nested=True), st.data())
def test_where_the_newest_block_goes_first_larger_blocks_never_need_less(
    play: tuple[Steps, list[int]], data: st.DataObject
) -> None:
    steps, sizes = play
    more = [size + data.draw(st.integers(0, 20)) for size in sizes]
    assert peak(steps, sizes) == most_alive(steps, sizes) <= peak(steps, more)


@given(plays(), st.integers(1, 50))
def test_one_more_block_never_needs_less(play: tuple[Steps, list[int]], size: int) -> None:
    steps, sizes = play
    assert peak([*steps, ("+", len(sizes))], [*sizes, size]) >= peak(steps, sizes)


def test_otherwise_a_smaller_block_may_need_more() -> None:
    """The hole that it leaves is then too small for the next: so no such law holds for graphs, and bounds have room."""
    steps = [("+", 0), ("+", 1), ("-", 0), ("+", 2)]
    assert peak(steps, [2, 1, 2]) == 3
    assert peak(steps, [1, 1, 2]) == 4


@given(st.integers(0, 10**9), st.sampled_from([ALIGNMENT, 128, 256]))
def test_aligned_sizes_grow_with_the_size(size: int, alignment: int) -> None:
    assert size <= aligned(size, alignment) < size + alignment
    assert aligned(size, alignment) % alignment == 0
    assert aligned(size + 1, alignment) >= aligned(size, alignment)
