"""One API server for the whole folder; a namespace, and as many nodes and operators as it asks for, for each test."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import pytest

from support.apiserver import missing_programs
from support.harness import Plane, plane
from support.helm import missing_program
from support.site import Site

if TYPE_CHECKING:
    from collections.abc import Iterator

SERIAL = itertools.count()
MISSING = missing_programs() or missing_program()


@pytest.fixture(scope="session")
def shared_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    if MISSING is not None:
        pytest.skip(MISSING)
    with plane(tmp_path_factory.mktemp("plane")) as made:
        yield made


@pytest.fixture
def site(shared_plane: Plane, request: pytest.FixtureRequest) -> Iterator[Site]:
    name = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:50].strip("-")
    namespace = f"{name}-{next(SERIAL)}"
    shared_plane.client.do(
        "POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    )
    made = Site(shared_plane, namespace)
    if shared_plane.nodes:
        made.remove_all()  # what the test before could not
    yield made
    for one in shared_plane.operators:
        print(f"--- operator {one.pid}\n{one.tail(40)}")  # noqa: T201 shown when the test fails
    made.clean()
