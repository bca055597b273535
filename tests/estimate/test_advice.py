"""What would fit: each answer is the largest, by the estimate itself, and the advice says what it rests on."""

from dataclasses import replace
from functools import cache, partial

import pytest

from estimate.models import parts
from paddock.core import advice
from paddock.core.advice import Need, per_request, with_request
from paddock.core.counsel import Advice, Wish, advise
from paddock.core.estimate import Options, estimate
from paddock.core.summary import summarize

GIB = 1024**3
DENSE, EXPERTS = "llama-3.1-8b", "mixtral-8x7b"


@cache
def need(name: str = DENSE) -> Need:
    return cache(partial(estimate, summarize(parts(name))))


OPTIONS = Options(context=8192)


@pytest.mark.parametrize("budget", [6 * GIB, 8 * GIB, 13 * GIB + 1])
@pytest.mark.parametrize(
    "options", [OPTIONS, Options(context=8192, parallel=3), Options(context=8192, parallel=3, kv_unified=True)]
)
def test_the_largest_context_fits_and_one_step_more_does_not(budget: int, options: Options) -> None:
    found = advice.largest_context(need(), options, budget, 131_072)
    assert found is not None
    assert found % 256 == 0
    assert advice.fits(need(), with_request(options, found), budget)
    assert found == 131_072 or not advice.fits(need(), with_request(options, found + 256), budget)


def test_no_context_fits_where_the_weights_do_not() -> None:
    assert advice.largest_context(need(), OPTIONS, 4 * GIB, 131_072) is None
    assert advice.most_slots(need(), OPTIONS, 4 * GIB, 8192) == 0
    assert advice.widest_cache(need(), OPTIONS, 4 * GIB) is None


def test_a_context_ends_where_the_model_was_trained() -> None:
    assert advice.largest_context(need(), OPTIONS, 1000 * GIB, 131_072) == 131_072


def test_as_many_users_as_fit_each_with_their_own_context() -> None:
    count = advice.most_slots(need(), OPTIONS, 16 * GIB, 8192)
    one = replace(OPTIONS, parallel=count)
    assert advice.fits(need(), with_request(one, 8192), 16 * GIB)
    assert not advice.fits(need(), with_request(replace(one, parallel=count + 1), 8192), 16 * GIB)
    assert per_request(with_request(one, 8192)) == 8192
    assert advice.most_slots(need(), OPTIONS, 10**6 * GIB, 8192) == advice.MOST_SLOTS


def test_the_most_precise_cache_type_that_fits_is_chosen() -> None:
    options = Options(context=32_768)
    sizes = {
        kind: need()(replace(options, cache_type_k=kind, cache_type_v=kind)).device_total for kind in advice.CACHE_TYPES
    }
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)
    for kind, size in sizes.items():
        found = advice.widest_cache(need(), options, size)
        assert found is not None
        assert (found.cache_type_k, found.cache_type_v) == (kind, kind)


def test_without_flash_attention_only_keys_are_made_smaller() -> None:
    options = Options(context=32_768, flash_attention="off")
    budget = need()(replace(options, cache_type_k="q8_0")).device_total
    found = advice.widest_cache(need(), options, budget)
    assert found is not None
    assert (found.cache_type_k, found.cache_type_v) == ("q8_0", "f16")


def test_as_many_layers_as_fit() -> None:
    count = advice.most_layers(need(), OPTIONS, 4 * GIB, 32)
    assert 0 < count < 33
    assert advice.fits(need(), replace(OPTIONS, gpu_layers=count), 4 * GIB)
    assert not advice.fits(need(), replace(OPTIONS, gpu_layers=count + 1), 4 * GIB)
    assert advice.most_layers(need(), OPTIONS, 100 * GIB, 32) == 33
    assert advice.most_layers(need(), OPTIONS, 1, 32) == 0


def test_the_planning_rule_of_a_card() -> None:
    """Of 95.6 GiB that a card of 96 GB reports, 83.04 are planned with."""
    assert advice.planning_budget(int(95.6 * GIB)) / GIB == pytest.approx(83.04, abs=0.005)
    assert advice.planning_budget(2 * GIB) == 0


def told(name: str, budget: int | None, options: Options = OPTIONS) -> dict[str, list[Advice]]:
    summary = summarize(parts(name))
    found: dict[str, list[Advice]] = {}
    for one in advise(parts(name), summary, estimate(summary, options), options, Wish(budget)):
        found.setdefault(one.kind, []).append(one)
    return found


def test_advice_where_the_model_fits() -> None:
    found = told(DENSE, 24 * GIB)
    assert found["fit"][0].facts["fits"] is True
    assert "does not" not in found["fit"][0].message
    assert found["context"][0].facts["contextLength"] == 131_072
    assert found["users"][0].facts["options"] == {"-c": 8192 * 19, "-np": 19}
    assert [one.facts["quantization"] for one in found["quantization"]] == ["BF16"]
    assert not {"layers", "cacheType", "experts"} & set(found)
    assert len(found["speed"]) == 1
    counts = [one.facts["users"] for one in found["table"]]
    assert all(isinstance(one, dict) and one["f16"] <= one["q8_0"] <= one["q4_0"] for one in counts)


def test_advice_where_the_model_does_not_fit() -> None:
    options = Options(context=131_072)
    found = told(DENSE, 12 * GIB, options)
    assert found["fit"][0].facts["fits"] is False
    assert "short" in found["fit"][0].message
    assert 0 < int(str(found["context"][0].facts["contextLength"])) < 131_072
    assert found["cacheType"][0].facts["options"] == {"-ctk": "q4_0", "-ctv": "q4_0"}
    layers = int(str(found["layers"][0].facts["layers"]))
    assert 0 < layers < 33
    (slow,) = [one for one in found["speed"] if one.facts["options"] == {"-ngl": layers}]
    assert "a ceiling, no promise" in slow.message
    assert int(str(slow.facts["hostBytesPerToken"])) > 0


def test_experts_of_as_few_layers_as_possible_go_to_the_host() -> None:
    found = told(EXPERTS, 20 * GIB)
    flags = found["experts"][0].facts["options"]
    assert isinstance(flags, dict)
    count = flags["-ncmoe"]
    assert advice.fits(need(EXPERTS), replace(OPTIONS, cpu_moe=count), 20 * GIB)
    assert not advice.fits(need(EXPERTS), replace(OPTIONS, cpu_moe=count - 1), 20 * GIB)
    assert any(one.facts["options"] == {"-ncmoe": count} for one in found["speed"])
    assert "experts" not in told(EXPERTS, 1 * GIB)


def test_a_smaller_quantization_is_named_only_when_it_would_fit() -> None:
    assert told("llama-3.1-70b", 30 * GIB)["quantization"][0].facts["quantization"] == "Q2_K"
    assert "quantization" not in told("llama-3.1-70b", 20 * GIB)


def test_without_a_budget_cards_are_looked_at() -> None:
    found = told(DENSE, None)
    contexts = [int(str(one.facts["contextLength"])) for one in found["card"]]
    assert contexts == sorted(contexts)
    assert contexts[0] == 0
    assert contexts[-1] == 131_072
    assert "fit" not in found


def test_facts_are_plain_data() -> None:
    for name in (DENSE, EXPERTS):
        for budget in (None, 12 * GIB):
            for group in told(name, budget).values():
                for one in group:
                    assert one.message
                    assert all(isinstance(value, (int, float, str, bool, dict)) for value in one.facts.values())
