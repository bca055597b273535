"""`paddock doctor` asks for rights that the chart really grants."""

from __future__ import annotations

import pytest

from paddock.core.rights import Right, rights
from support.helm import NAMESPACE, missing_program, operator_rights

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
