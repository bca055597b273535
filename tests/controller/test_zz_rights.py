"""The chart's rights are what the operator needs, no more. Last in the folder: it judges what all others recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.harness import USER, resource_of
from support.helm import operator_rights

if TYPE_CHECKING:
    from support.site import Site

LONG = {"test_soak.py"}
"""Files with long tests alone."""
UNUSED: dict[str, str] = {}
"""Rights that no test can bring the operator to use, each with the reason for it."""


def requests(site: Site) -> set[str]:
    """Give what the API server has seen of the operators with the chart's own account."""
    return {
        f"{one['verb']} {resource_of(one)}"
        for one in site.plane.audit()
        if one["user"]["username"] == USER and one.get("objectRef", {}).get("resource")
    }


def test_nothing_was_refused(site: Site) -> None:
    site.operator()
    refused = {
        f"{one['verb']} {resource_of(one)}: {one['responseStatus'].get('message', '')}"
        for one in site.plane.audit()
        if one["responseStatus"]["code"] == 403
        and one["user"]["username"] == USER
        and '" cannot ' in one["responseStatus"].get("message", "")  # not by a quota, nor in a namespace that ends
    }
    assert not refused


def test_every_call_is_granted_and_every_right_is_used(site: Site, request: pytest.FixtureRequest) -> None:
    operator = site.operator()
    seen, granted = requests(site), operator_rights()
    assert not seen - granted
    assert set(operator.calls()) <= granted, "what the operator counts is spelled as rights are"
    files = {item.path.name for item in request.session.items if item.path.parent == request.path.parent}
    if not files >= {path.name for path in request.path.parent.glob("test_*.py")} - LONG:
        pytest.skip("which rights are used shows only when the whole folder runs")
    assert granted - seen == set(UNUSED)
