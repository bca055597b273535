"""Lists of namespaced kinds, page by page, where this operator works."""

from collections.abc import AsyncIterator, Mapping, Sequence

from paddock.controller.cluster import JSON, Cluster, namespaced

PAGE = 100
"""Objects that are read at once."""


class Lists:
    """Reads everywhere, or in the named namespaces alone."""

    def __init__(self, cluster: Cluster, namespaces: Sequence[str]) -> None:
        self._cluster, self._namespaces = cluster, namespaces

    def here(self, namespace: str) -> bool:
        """Tell whether a namespace is one of these."""
        return not self._namespaces or namespace in self._namespaces

    async def pages(self, kind: str, group: str, params: Mapping[str, str] | None = None) -> AsyncIterator[list[JSON]]:
        """Read a kind; raises ClusterError."""
        paths = [namespaced(kind, one, None, group) for one in self._namespaces] or [f"{group}/{kind}"]
        for path in paths:
            async for page in self._cluster.pages(path, params, PAGE):
                yield page

    async def names(self, kind: str, group: str, params: Mapping[str, str] | None = None) -> set[str]:
        """Give all of a kind as namespace/name; raises ClusterError."""
        metas = [one["metadata"] async for page in self.pages(kind, group, params) for one in page]
        return {f"{one['namespace']}/{one['name']}" for one in metas}
