"""What is read from llama-server's /metrics."""

from paddock.core.traffic import WINDOW, Counters, Look, counters, keep, rate

TEXT = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 120
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 1.5e+03
llamacpp:predicted_tokens_seconds NaN
llamacpp:requests_processing 2
llamacpp:requests_deferred 3
"""


def look(at: float, answered: float) -> Look:
    return Look(at, Counters(answered))


def test_counters_are_read() -> None:
    assert counters(TEXT) == Counters(1500, 120, 2, 3)


def test_other_text_is_no_counters() -> None:
    assert counters("<html>") is None
    assert counters("") is None


def test_a_rate_needs_two_looks() -> None:
    assert rate([]) is None
    assert rate([look(1, 5)]) is None
    assert rate([look(1, 5), look(3, 25)]) == 10


def test_a_rate_forgets_what_is_long_ago() -> None:
    looks: tuple[Look, ...] = ()
    for second in range(60):
        looks = keep(looks, look(second, 0 if second < 30 else 100))
    assert looks[0].at == 59 - WINDOW
    assert rate(looks) == 0


def test_a_restart_is_no_negative_rate() -> None:
    looks = keep((look(1, 500), look(2, 600)), look(3, 10))
    assert rate(looks) is None
    assert rate(keep(looks, look(4, 30))) == 20
