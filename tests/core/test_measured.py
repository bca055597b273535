"""A measurement beside a formula: used, compared, and never mixed with it."""

from paddock.core.estimate import Addend, MemoryEstimate
from paddock.core.measured import Counted, Difference, Measurement, composed, differences, expected, plausible

MEASURED = Measurement((Counted(1000, 200, 50),), Counted(300, 0, 20), 4096, "0.26.0", 0.1)


def formula(*addends: Addend) -> MemoryEstimate:
    return MemoryEstimate(addends, "bound" if any(one.source == "bound" for one in addends) else "exact")


SAME = formula(
    Addend("weights", "device", "weights", 1000, "exact"),
    Addend("keys and values", "device", "kvCache", 150, "exact"),
    Addend("keys of windowed layers", "device", "kvCache", 50, "exact"),
    Addend("compute buffer", "device", "compute", 50, "formula"),
    Addend("token embeddings", "host", "weights", 300, "exact"),
    Addend("inputs", "host", "compute", 20, "formula"),
    Addend("server process", "host", "overhead", 7, "learned"),
)
CUDA = formula(
    *(one for one in SAME.addends if one.name != "compute buffer"),
    Addend("compute buffer", "device", "compute", 50, "formula"),
    Addend("16-bit copy of a quantized cache", "device", "compute", 30, "formula"),
    Addend("driver", "device", "overhead", 500, "learned"),
)


def test_equal_sums_have_no_difference() -> None:
    assert differences(SAME, MEASURED) == []


def test_every_difference_is_named() -> None:
    high = formula(*SAME.addends, Addend("more", "device", "compute", 5, "bound"))
    low = formula(*(one for one in SAME.addends if one.kind != "kvCache"))
    assert differences(high, MEASURED) == [Difference("device", "compute", 55, 50)]
    assert differences(low, MEASURED) == [Difference("device", "kvCache", 0, 200)]


def test_a_bound_may_be_above_and_nothing_else() -> None:
    bound = formula(Addend("compute", "device", "compute", 60, "bound"))
    assert expected(bound, Difference("device", "compute", 60, 50))
    assert not expected(bound, Difference("device", "compute", 40, 50))
    assert not expected(SAME, Difference("device", "weights", 1001, 1000))


def test_a_formula_is_within_a_hundredth() -> None:
    assert expected(SAME, Difference("device", "compute", 5050, 5000))
    assert expected(SAME, Difference("device", "compute", 4950, 5000))
    assert not expected(SAME, Difference("device", "compute", 5051, 5000))
    assert not expected(SAME, Difference("device", "compute", 5, 0))


def test_what_a_backend_adds_by_a_bound_is_a_bound() -> None:
    roomy = formula(*CUDA.addends, Addend("room", "device", "compute", 5, "bound"))
    found = composed("llama", MEASURED, SAME, roomy)
    assert found.confidence == "bound"
    assert [one.bytes for one in found.addends if one.source == "bound"] == [35]


def test_what_was_measured_is_used_as_it_is() -> None:
    found = composed("llama", MEASURED, SAME, SAME)
    assert found.confidence == "exact"
    assert [found.sum("device", kind) for kind in ("weights", "kvCache", "compute")] == [1000, 200, 50]
    assert [found.sum("host", kind) for kind in ("weights", "kvCache", "compute")] == [300, 0, 20]
    assert found.overhead == 7
    assert {one.source for one in found.addends if one.kind != "overhead"} == {"exact"}


def test_what_a_backend_adds_is_added_by_the_formula() -> None:
    found = composed("llama", MEASURED, SAME, CUDA)
    assert found.sum("device", "compute") == 80
    assert [one.source for one in found.addends if one.bytes == 30] == ["formula"]
    assert found.sum("device", "overhead") == 500
    assert found.device_total == 1000 + 200 + 80 + 500


def test_a_wrong_formula_does_not_move_the_measurement() -> None:
    wrong = formula(*SAME.addends, Addend("too much", "device", "compute", 10**9, "bound"))
    assert composed("llama", MEASURED, wrong, wrong) == composed("llama", MEASURED, SAME, SAME)


def test_architectures_that_llama_cpp_counts_too_high_are_bounds() -> None:
    found = composed("minimax-01", MEASURED, SAME, SAME)
    assert found.confidence == "bound"
    assert {one.kind for one in found.addends if one.source == "bound"} == {"compute"}


def test_a_misread_table_is_noticed_by_its_weights() -> None:
    assert plausible(MEASURED, SAME)
    misread = Measurement((Counted(2**60, 200, 50),), MEASURED.host, 4096, "", 0.1)
    assert not plausible(misread, SAME)
    assert not plausible(Measurement((Counted(0, 0, 0),), Counted(0, 0, 0), 1, "", 0.1), SAME)
