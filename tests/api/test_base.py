"""The base of every model: frozen, shared where it is a default, and never changed by a copy of it."""

import copy

from paddock.api.gpu import Memory
from paddock.api.modeldeployment import ModelDeploymentSpec


def test_a_changed_copy_leaves_the_model_as_it_is() -> None:
    before = Memory(total="1Mi")
    after = before.model_copy(update={"total": "2Mi"})
    assert (before.total, after.total) == ("1Mi", "2Mi")


def test_defaults_are_shared() -> None:
    one, other = (ModelDeploymentSpec.model_validate({"model": {"source": "pvc://a/x"}}) for _ in range(2))
    assert one.serving is other.serving
    assert copy.deepcopy(one) is one
