"""Options and settings that all tests share."""

import os

import pytest
from hypothesis import HealthCheck, settings

# No deadline per example: a loaded machine is no failure. No database: a run leaves no file behind.
# More examples for a long run: PADDOCK_EXAMPLES=1000.
settings.register_profile(
    "paddock",
    max_examples=int(os.environ.get("PADDOCK_EXAMPLES", "15")),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("paddock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew instead of comparing")


GROUPS = ("cluster", "controller", "contract")
"""Tests that share something slow to start, by what it is; each group stays in one process of `pytest -n`."""


def _group(path: str) -> str | None:
    folder = path.split("/")[1]
    if folder in ("e2e", "cluster"):
        return "cluster"
    return folder if folder in GROUPS else None


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have each group run in one process, the longest first."""
    order = {name: number for number, name in enumerate(GROUPS)}
    for item in items:
        if (group := _group(item.nodeid)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: order.get(_group(item.nodeid) or "", len(order)))
