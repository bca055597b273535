"""Which files of a repository a quantization means."""

import re
from collections.abc import Sequence
from typing import Final

_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")
_NOT_MODELS: Final = ("mmproj", "imatrix")
_SHOWN: Final = 12


def files_of_quantization(names: Sequence[str], quantization: str) -> list[str] | str:
    """Give the files in order (all parts of a split model), or why there is no one answer. `names` are paths.

    A name fits when the quantization stands in it as a word: Q4_K does not fit model-Q4_K_M.gguf. Where several
    models fit, the one in the outermost folder is meant, unless there are several of them too.
    """
    word = re.compile(rf"(?<![a-z0-9_]){re.escape(quantization.lower())}(?![a-z0-9_])")
    models = sorted(name for name in names if name.endswith(".gguf") and not _auxiliary(name))
    fitting = [name for name in models if word.search(name.lower())]
    if not fitting:
        return f"no file of the repository is called {quantization}; {_there(models)}"
    stems = sorted({_stem(name) for name in fitting}, key=lambda stem: (stem.count("/"), stem))
    best = [stem for stem in stems if stem.count("/") == stems[0].count("/")]
    if len(best) > 1:
        return f"{quantization} means {len(best)} models of the repository: name a file instead, {_some(best)}"
    return parts_of([name for name in fitting if _stem(name) == best[0]])


def parts_of(names: Sequence[str]) -> list[str] | str:
    """Give all parts of one model in order, or which of them are missing."""
    counts = {found["count"] for name in names if (found := _PART.fullmatch(name))}
    if not counts:
        return sorted(names)
    if len(counts) > 1:
        return f"the parts of {_stem(names[0])} disagree on their number: {', '.join(sorted(counts))}"
    count = counts.pop()
    wanted = [f"{_stem(names[0])}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]
    missing = [name for name in wanted if name not in names]
    if missing:
        return f"{len(missing)} of {len(wanted)} parts are missing: {_some(missing)}"
    return wanted


def siblings_of(name: str) -> list[str]:
    """Give all parts of the split model that a file belongs to by its name, or the file alone."""
    found = _PART.fullmatch(name)
    if found is None:
        return [name]
    return [f"{found['stem']}-{number:05}-of-{found['count']}.gguf" for number in range(1, int(found["count"]) + 1)]


def _auxiliary(name: str) -> bool:
    return any(word in name.rpartition("/")[2].lower() for word in _NOT_MODELS)


def _stem(name: str) -> str:
    found = _PART.fullmatch(name)
    return found["stem"] if found else name.removesuffix(".gguf")


def _there(models: Sequence[str]) -> str:
    return f"there are {_some(models)}" if models else "it holds no .gguf files (a repository of the original weights?)"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
