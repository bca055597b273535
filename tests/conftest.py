"""Options and settings that all tests share."""

import os

import pytest
from hypothesis import HealthCheck, settings

# No deadline per example: a loaded machine is no failure. No database: a run leaves no file behind.
# More examples: PADDOCK_EXAMPLES=1000. `make test` asks for 60.
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
