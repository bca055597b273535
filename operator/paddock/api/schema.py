"""Turn pydantic models into structural schemas, the part of JSON schema that a CustomResourceDefinition may hold.

Only keywords that the API server is known to accept pass; anything else is an error here instead of a refusal, or a
silently ignored rule, on somebody's cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from paddock.api.documented import document

Schema = dict[str, Any]

_KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "multipleOf",
    "not",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
    "required",
)
_HANDLED = {"properties", "items", "additionalProperties", "default", "const"}
_DROPPED = {"title", "$defs"}
_INT32_MAX = 2**31 - 1


def structural(model: type[BaseModel], *, defaults: bool) -> Schema:
    """Give the structural schema of a model.

    `defaults` says whether the API server fills in defaults: in a spec it does, so that rules and readers see every
    value; a status is written whole by the operator and gets none. Raises TypeError for what has no structural form.
    """
    document(model)
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _Converter(schema.get("$defs", {}), defaults=defaults).convert(schema)


@dataclass(frozen=True)
class _Converter:
    definitions: Mapping[str, Schema]
    defaults: bool

    def convert(self, raw: Schema) -> Schema:
        node = self._resolve(raw)
        if unknown := node.keys() - set(_KEPT) - _HANDLED - _DROPPED:
            raise TypeError(f"no structural form is known for {sorted(unknown)} in {node}")
        if "const" in node:
            node = node | {"enum": [node["const"]]}
        out = {key: node[key] for key in _KEPT if key in node}
        if "description" in out:
            out["description"] = " ".join(out["description"].split())
        if out.get("type") == "integer":
            out["format"] = "int32" if node.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
        inner: Schema = {}
        if properties := node.get("properties"):
            inner["properties"] = {name: self.convert(child) for name, child in properties.items()}
        if "items" in node:
            inner["items"] = self.convert(node["items"])
        if isinstance(values := node.get("additionalProperties"), dict):
            inner["additionalProperties"] = self.convert(values)
        return out | self._default(node, inner) | inner

    def _resolve(self, node: Schema) -> Schema:
        """Put definitions in place of references, and X in place of `X | None`; what stands beside them wins."""
        if reference := node.get("$ref"):
            target = self.definitions[reference.removeprefix("#/$defs/")]
            return self._resolve(target | _without(node, "$ref"))
        if branches := node.get("anyOf"):
            some = [branch for branch in branches if branch.get("type") != "null"]
            if len(some) != 1:
                raise TypeError(f"a union has no structural form: {node}")
            return self._resolve(some[0] | _without(node, "anyOf"))
        return node

    def _default(self, node: Schema, inner: Schema) -> Schema:
        """Give the default to state: none for absent and empty values, and for objects the defaults inside.

        They are written out because the API server holds the default itself against the rules, before it fills it.
        """
        value = node.get("default")
        if not self.defaults or value is None:
            return {}
        if isinstance(value, dict) and (properties := inner.get("properties")):
            value = {name: child["default"] for name, child in properties.items() if "default" in child}
        return {} if value in ([], {}) else {"default": value}


def _without(node: Schema, key: str) -> Schema:
    return {name: value for name, value in node.items() if name != key}
