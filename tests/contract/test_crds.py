"""What is generated is what is committed: crds/ and docs/reference/."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest
import yaml

from cluster.settings import REPOSITORY
from paddock.api.crd import crds
from paddock.api.vocabulary import CONDITION_MEANING, REASONS, VERDICTS, ConditionType, Reason, Verdict

SCRIPT = REPOSITORY / "docs" / "generate.py"


@pytest.fixture(scope="module")
def generate() -> Any:
    spec = importlib.util.spec_from_file_location("generate", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


def test_nothing_generated_differs_from_its_source() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_difference_is_found(generate: Any) -> None:
    name = "crds/paddock.dev_gpus.yaml"
    assert generate.differing({name: generate.generated()[name] + "#"}) == [name]
    assert generate.differing({"crds/absent.yaml": ""}) == ["crds/absent.yaml"]


def test_the_folder_holds_the_definitions_and_nothing_else() -> None:
    files = {path.name: path.read_text() for path in (REPOSITORY / "crds").iterdir()}
    assert files == crds()
    for name, text in files.items():
        crd = yaml.safe_load(text)
        assert name == f"{crd['spec']['group']}_{crd['spec']['names']['plural']}.yaml"


def test_every_word_is_explained_once_and_shown() -> None:
    assert set(CONDITION_MEANING) == set(ConditionType)
    assert set(REASONS) == set(Reason)
    assert set(VERDICTS) == set(Verdict)
    page = (REPOSITORY / "docs" / "reference" / "reasons.md").read_text()
    for word in [*ConditionType, *Reason, *Verdict]:
        assert f"| `{word}` |" in page


def test_every_value_of_the_chart_is_commented(generate: Any) -> None:
    text = (REPOSITORY / "charts" / "paddock" / "values.yaml").read_text()
    values, pool = generate.read_comments(text)
    commented = {value.path for value in values}

    def leaves(node: Any, path: str) -> list[str]:
        if isinstance(node, dict) and node and path not in commented:
            return [leaf for key, child in node.items() for leaf in leaves(child, f"{path}.{key}" if path else key)]
        return [path]

    assert [leaf for leaf in leaves(yaml.safe_load(text), "") if leaf not in commented] == []
    schema = generate.json.loads((REPOSITORY / "charts" / "paddock" / "values.schema.json").read_text())
    assert pool.keys() == schema["$defs"]["pool"]["properties"].keys()


def test_every_value_of_the_schema_has_a_default(generate: Any) -> None:
    folder = REPOSITORY / "charts" / "paddock"
    values = yaml.safe_load((folder / "values.yaml").read_text())
    schema = generate.json.loads((folder / "values.schema.json").read_text())

    def missing(node: Any, given: Any, path: str) -> list[str]:
        found = []
        for name, child in node.get("properties", {}).items():
            here = f"{path}.{name}"
            inner = generate.resolve(schema, child)
            if name not in given:
                found.append(here)
            elif here not in (".images.servers", ".operator.resources", ".guardRails.namespaceSelector"):
                found += missing(inner, given[name], here)
        return found

    assert missing(schema, values, "") == [".global"]
