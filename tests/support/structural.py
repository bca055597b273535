"""What the API server demands of a structural schema, as far as it can be told without one."""

from __future__ import annotations

from typing import Any

NOT_STRUCTURAL = {
    "$ref",
    "$defs",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "const",
    "title",
    "uniqueItems",
    "prefixItems",
    "patternProperties",
    "propertyNames",
    "x-kubernetes-preserve-unknown-fields",  # structural, but then nothing below is checked or pruned
}
IN_A_CLOSED_UNION = {"not", "x-kubernetes-preserve-unknown-fields"}
KINDS = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def problems(node: dict[str, Any], path: str = "") -> list[str]:
    """Name every place where the schema is not structural; empty when it is."""
    kind = node.get("type")
    closed = kind is None and _is_closed_union(node)
    found = [
        f"{path}: {word}" for word in sorted((NOT_STRUCTURAL - (IN_A_CLOSED_UNION if closed else set())) & node.keys())
    ]
    if kind not in KINDS and not closed and not (kind is None and node.get("x-kubernetes-int-or-string")):
        found.append(f"{path}: type {kind}")
    if "default" in node and kind in KINDS and not isinstance(node["default"], KINDS[kind]):
        found.append(f"{path}: default {node['default']!r} is no {kind}")
    if kind == "array" and "items" not in node:
        found.append(f"{path}: array without items")
    if "properties" in node and "additionalProperties" in node:
        found.append(f"{path}: properties beside additionalProperties")
    if node.get("x-kubernetes-list-type") == "map":
        found += _list_map(node, path)
    for name, child in node.get("properties", {}).items():
        found += problems(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            found += problems(node[key], f"{path}.{key}")
    return found


def _is_closed_union(node: dict[str, Any]) -> bool:
    """Tell whether a node without a type takes numbers, some texts and one object only: nothing is unchecked."""
    names = sorted(node.get("properties", {}))
    whole = bool(names) and sorted(node.get("required", [])) == names and node.get("maxProperties") == len(names)
    others = node.get("maxItems") == 0 and node.get("not") == {"enum": [True, False, []]}
    return whole and others and {"minimum", "maximum", "multipleOf", "pattern"} <= node.keys()


def _list_map(node: dict[str, Any], path: str) -> list[str]:
    keys = node.get("x-kubernetes-list-map-keys", [])
    required = node["items"].get("required", [])
    return [f"{path}: key {key} may be absent" for key in keys if key not in required] or (
        [] if keys else [f"{path}: list map without keys"]
    )
