"""`paddock doctor` asks for rights that the chart really grants."""

from __future__ import annotations

import pytest

from paddock.core.rights import Option, Right, options_of, rights
from support.helm import NAMESPACE, environment, missing_program, named, operator_rights, render

pytestmark = pytest.mark.skipif(missing_program() is not None, reason=missing_program() or "")


def spelled(one: Right) -> str:
    sub = f"/{one.subresource}" if one.subresource else ""
    return f"{one.verb} {one.group}/{one.resource}{sub}"


@pytest.mark.parametrize(
    ("values", "folders"), [({}, True), ({"modelRoots": []}, False)], ids=["with folders", "without folders"]
)
def test_the_doctor_asks_for_nothing_that_the_chart_does_not_grant(values: dict[str, object], folders: bool) -> None:
    asked = {spelled(one) for one in rights(NAMESPACE, (), folders=folders)}
    assert asked - operator_rights(values) == set()


@pytest.mark.parametrize(
    ("option", "values"),
    [
        (Option.DRA, {"dra": {"enabled": True}}),
        (Option.HOLDER_PODS, {"agent": {"podResources": True}, "holderPods": {"enabled": True}}),
        (Option.NODE_CAPACITY, {"nodeCapacity": {"mode": "Enabled"}}),
    ],
)
def test_it_asks_for_all_that_a_value_adds(option: Option, values: dict[str, object]) -> None:
    every = set(rights(NAMESPACE, (), folders=True, options=[option]))
    assert {spelled(one) for one in every} <= operator_rights(values)
    added = every - set(rights(NAMESPACE, (), folders=True))
    assert {spelled(one) for one in added} >= operator_rights(values) - operator_rights()


def test_what_is_switched_on_is_read_from_the_operators_own_environment() -> None:
    for value in ({}, {"nodeCapacity": {"mode": "Removed"}}, {"dra": {"enabled": True}}):
        made = environment(named(render(value), "Deployment", "paddock-operator"))
        found = options_of({name: text or "" for name, text in made.items()})
        want = {"nodeCapacity": Option.NODE_CAPACITY, "dra": Option.DRA}
        assert found == {want[name] for name in value}
