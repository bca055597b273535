from collections.abc import Callable
from pathlib import Path

import pytest

from cli.fake import FakeApi, Shell

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def shell(api: FakeApi) -> Shell:
    return Shell(api)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with a file in golden/; `pytest --update-golden` writes the files."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare
