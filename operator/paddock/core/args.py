"""Which llama-server arguments a user may add.

llama-server accepts hundreds of arguments; some read or write files, run tools, open other devices or contact other
machines. So only those below are allowed, each with the number of values it takes. Names are compared as llama.cpp
compares them: `_` counts as `-` in long names (common/arg.cpp), and aliases are known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Argument:
    """An allowed argument: its spellings, the number of its values, and what it does."""

    names: tuple[str, ...]
    values: int
    text: str
    bounds: tuple[int, int] | None = None
    """Whole numbers that may be its value; None: anything that llama-server takes."""


ALLOWED: tuple[Argument, ...] = (
    Argument(("--rope-scaling",), 1, "RoPE scaling method: none, linear or yarn"),
    Argument(("--rope-scale",), 1, "RoPE context scaling factor"),
    Argument(("--rope-freq-base",), 1, "RoPE base frequency"),
    Argument(("--rope-freq-scale",), 1, "RoPE frequency scaling factor"),
    Argument(("--yarn-orig-ctx",), 1, "YaRN: original context size"),
    Argument(("--yarn-ext-factor",), 1, "YaRN: extrapolation mix factor"),
    Argument(("--yarn-attn-factor",), 1, "YaRN: attention magnitude scale"),
    Argument(("--yarn-beta-slow",), 1, "YaRN: high correction dim"),
    Argument(("--yarn-beta-fast",), 1, "YaRN: low correction dim"),
    Argument(("-n", "--predict", "--n-predict"), 1, "tokens to predict at most"),
    Argument(("--keep",), 1, "tokens of the first prompt to keep"),
    Argument(("-s", "--seed"), 1, "random seed"),
    Argument(("--samplers",), 1, "samplers in order"),
    Argument(("--sampling-seq", "--sampler-seq"), 1, "samplers in short form"),
    Argument(("--temp", "--temperature"), 1, "temperature"),
    Argument(("--top-k",), 1, "top-k sampling"),
    Argument(("--top-p",), 1, "top-p sampling"),
    Argument(("--min-p",), 1, "min-p sampling"),
    Argument(("--typical", "--typical-p"), 1, "locally typical sampling"),
    Argument(("--repeat-last-n",), 1, "tokens considered for the repeat penalty"),
    Argument(("--repeat-penalty",), 1, "repeat penalty"),
    Argument(("--presence-penalty",), 1, "presence penalty"),
    Argument(("--frequency-penalty",), 1, "frequency penalty"),
    Argument(("--dry-multiplier",), 1, "DRY sampling multiplier"),
    Argument(("--dry-base",), 1, "DRY sampling base"),
    Argument(("--dry-allowed-length",), 1, "DRY sampling allowed length"),
    Argument(("--dry-penalty-last-n",), 1, "DRY penalty for the last n tokens"),
    Argument(("--dynatemp-range",), 1, "dynamic temperature range"),
    Argument(("--dynatemp-exp",), 1, "dynamic temperature exponent"),
    Argument(("--mirostat",), 1, "Mirostat version"),
    Argument(("--mirostat-lr",), 1, "Mirostat learning rate"),
    Argument(("--mirostat-ent",), 1, "Mirostat target entropy"),
    Argument(("--grammar",), 1, "grammar that answers must follow"),
    Argument(("-j", "--json-schema"), 1, "JSON schema that answers must follow"),
    Argument(("--ignore-eos",), 0, "go on after the end of the answer"),
    Argument(("-sp", "--special"), 0, "output special tokens"),
    Argument(("-r", "--reverse-prompt"), 1, "stop at this text"),
    Argument(("--jinja",), 0, "use the model's Jinja template"),
    Argument(("--no-jinja",), 0, "use the built-in templates"),
    Argument(("--chat-template",), 1, "chat template by name or text"),
    Argument(("--chat-template-kwargs",), 1, "JSON object given to the chat template"),
    Argument(("--reasoning-format",), 1, "how reasoning is given back"),
    Argument(("--reasoning-budget",), 1, "tokens that reasoning may take"),
    Argument(("--pooling",), 1, "pooling of embeddings: none, mean, cls, last or rank"),
    Argument(("--embd-normalize",), 1, "normalisation of embeddings"),
    Argument(("--cache-reuse",), 1, "smallest chunk reused from the cache"),
    Argument(("-sps", "--slot-prompt-similarity"), 1, "similarity for reuse of a slot"),
    Argument(("--context-shift",), 0, "shift the context when it is full"),
    Argument(("--no-context-shift",), 0, "do not shift the context"),
    Argument(("-to", "--timeout"), 1, "read and write timeout in seconds", (1, 86_400)),
    Argument(("--threads-http",), 1, "threads that answer requests", (1, 64)),
    Argument(("--prio",), 1, "priority of threads"),
    Argument(("--poll",), 1, "polling level while waiting for work", (0, 100)),
    Argument(("--no-warmup",), 0, "skip the empty run after loading"),
    Argument(("--check-tensors",), 0, "look for invalid values in tensors"),
)

OWN_FIELD: Mapping[str, str] = {
    "-c": "serving.contextLength", "--ctx-size": "serving.contextLength",
    "-np": "serving.parallel", "--parallel": "serving.parallel",
    "-ctk": "serving.cacheTypeK", "--cache-type-k": "serving.cacheTypeK",
    "-ctv": "serving.cacheTypeV", "--cache-type-v": "serving.cacheTypeV",
    "-b": "serving.batch", "--batch-size": "serving.batch",
    "-ub": "serving.ubatch", "--ubatch-size": "serving.ubatch",
    "-fa": "serving.flashAttention", "--flash-attn": "serving.flashAttention",
    "-ngl": "serving.gpuLayers", "--gpu-layers": "serving.gpuLayers", "--n-gpu-layers": "serving.gpuLayers",
    "--embedding": "serving.mode", "--embeddings": "serving.mode", "--rerank": "serving.mode", "--reranking": "serving.mode",
    "-m": "model.source", "--model": "model.source", "-mu": "model.source", "--model-url": "model.source",
    "-hf": "model.source", "-hfr": "model.source", "--hf-repo": "model.source",
    "-mm": "model.projector", "--mmproj": "model.projector", "-mmu": "model.projector", "--mmproj-url": "model.projector",
    "-mmdev": "model.projector", "--mmproj-device": "model.projector",
    "--mmproj-offload": "model.projector", "--no-mmproj-offload": "model.projector",
    "--lora": "model.loraAdapters", "--lora-scaled": "model.loraAdapters",
    "-md": "model.draft", "--model-draft": "model.draft", "--spec-draft-model": "model.draft",
    "-devd": "model.draft", "--device-draft": "model.draft", "--spec-draft-device": "model.draft",
    "-ngld": "model.draft", "--gpu-layers-draft": "model.draft", "--n-gpu-layers-draft": "model.draft",
    "--spec-draft-ngl": "model.draft", "--spec-type": "model.draft", "--spec-draft-n-max": "model.draft",
    "--api-key": "serving.apiKeySecretRef", "--api-key-file": "serving.apiKeySecretRef",
    "-dev": "placement.devices", "--device": "placement.devices", "-sm": "placement.devices", "--split-mode": "placement.devices",
    "-mg": "placement.devices", "--main-gpu": "placement.devices", "-ts": "placement.devices", "--tensor-split": "placement.devices",
    "-t": "server.resources", "--threads": "server.resources", "-tb": "server.resources", "--threads-batch": "server.resources",
}  # fmt: skip
"""Arguments that have a field of their own."""

_BY_NAME = {name: argument for argument in ALLOWED for name in argument.names}


def normal(name: str) -> str:
    """Give an argument's name as llama.cpp reads it: in a long name `_` is `-`."""
    return name.replace("_", "-") if name.startswith("--") else name


def check(arguments: Iterable[str]) -> str | None:
    """Give the reason why the arguments are refused, or None when they are allowed."""
    waiting: Argument | None = None
    left = 0
    previous = ""
    for text in arguments:
        if any(not character.isprintable() and character not in "\n\t" for character in text):
            return f"argument {text!r} has a control character"
        if left:
            # A value may begin with a minus sign only when it is a number. llama.cpp would take anything, but so an
            # argument can never pass as a value, should a build ever count the values of a name differently.
            if text.startswith("-") and not _number(text):
                return f"{waiting.names[0] if waiting else ''} needs a value, found {text!r}"
            if waiting is not None and (problem := _out_of_bounds(waiting, text)):
                return problem
            left -= 1
            continue
        name = normal(text)
        head = name.split("=", 1)[0]
        if head in OWN_FIELD:
            return f"{text!r} has a field of its own: use {OWN_FIELD[head]}"
        if head != name and head in _BY_NAME:
            return f"write {head!r} and its value as two list items instead of {text!r}"
        waiting = _BY_NAME.get(name)
        if waiting is None:
            return _unknown(text, previous)
        left = waiting.values
        previous = waiting.names[0]
    return f"{waiting.names[0]} needs a value" if left and waiting else None


def _out_of_bounds(argument: Argument, text: str) -> str | None:
    """Say what is wrong with a value that would take more of the node than a server should."""
    if argument.bounds is None:
        return None
    least, most = argument.bounds
    if text.isascii() and text.isdecimal() and least <= int(text[:9]) <= most and len(text) <= len(str(most)):
        return None
    return f"{argument.names[0]} takes a whole number from {least} to {most}, found {text!r}"


def _unknown(text: str, previous: str) -> str:
    if text.startswith("-"):
        return f"{text!r} is not an allowed llama-server argument; see docs/reference/arguments.md"
    return f"found {text!r} where an argument is expected" + (f" after {previous}" if previous else "")


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
