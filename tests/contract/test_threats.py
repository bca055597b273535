"""Each line of the threat table names tests, and they exist."""

import re

import pytest

from cluster.settings import REPOSITORY

TESTS = REPOSITORY / "tests"
PAGE = (REPOSITORY / "docs" / "security.md").read_text()
SECTION = PAGE.split("## Threats and answers", 1)[1].split("\n## ", 1)[0]
ROWS = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith("| ")][1:]


def test_there_is_a_table() -> None:
    assert len(ROWS) > 20
    assert all(len(row) == 3 for row in ROWS), [row for row in ROWS if len(row) != 3]


@pytest.mark.parametrize(("threat", "named"), [(row[0], row[2]) for row in ROWS])
def test_the_tests_of_a_threat_exist(threat: str, named: str) -> None:
    found = re.findall(r"`([^`]+)`", named)
    assert found, f"no test of: {threat}"
    for one in found:
        file, _, name = one.partition("::")
        assert (TESTS / file).is_file(), file
        assert re.search(rf"^ *(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE), one
