"""`paddock estimate`: what is asked, the need, the measurement beside it, and what would fit."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from paddock.cli.model import Model, read_header, read_model
from paddock.cli.problem import Problem
from paddock.core.beside import Beside, Draft
from paddock.core.counsel import Advice, Wish, advise
from paddock.core.division import DivisionError, Estimator
from paddock.core.estimate import BUILD, Addend, MemoryEstimate, Options, added_up
from paddock.core.geometry import Geometry, flash_attention
from paddock.core.ggml import type_called
from paddock.core.gguf import GgufError
from paddock.core.measured import COUNTED, PLACES, Difference, Measurement, composed, differences, expected, plausible
from paddock.core.quantity import parse_quantity
from paddock.core.quantize import quantization

LIBRARY: Final = "PADDOCK_LLAMA_CPP"
"""Environment variable: folder of llama.cpp's libraries."""
IMAGE_FOLDER: Final = Path("/app")
"""Where serving images keep them."""

JSON = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What the user wants to know."""

    options: Options
    wish: Wish
    beside: Beside = field(default_factory=Beside)
    """What the server holds beside the model."""
    measure: bool | None = None
    """Whether llama.cpp is asked: None is if its libraries are at hand."""
    library: Path | None = None


@dataclass(frozen=True)
class Answer:
    """All that is known of one model with one set of options."""

    model: Model
    asked: Asked
    geometry: Geometry
    need: MemoryEstimate
    """The measured one where there is one."""
    formula: MemoryEstimate
    measurement: Measurement | None
    differences: tuple[Difference, ...]
    """Between formula and measurement, on the plain device."""
    not_measured: str | None
    """Why there is no measurement although the libraries are at hand."""
    advice: tuple[Advice, ...]


def answer(model: Model, asked: Asked) -> Answer:
    """Answer; raises Problem."""
    options = _checked(model, asked.options)
    estimator = Estimator(model.parts, model.summary, asked.beside)
    formula = _estimated(estimator, options)
    measurement, reason = _measured(model, replace(asked, options=options))
    plain = replace(options, backend="generic")
    plain_formula = estimator.model(plain)
    need = formula
    found: tuple[Difference, ...] = ()
    if measurement is not None:
        need = composed(model.summary.architecture, measurement, plain_formula, estimator.model(options))
        need = added_up((*need.addends, *(formula.addends[len(estimator.model(options).addends) :])))
        found = tuple(differences(plain_formula, measurement))
    counsel = tuple(advise(model.parts, model.summary, need, options, asked.wish, asked.beside))
    geometry = Geometry.of(model.summary, options)
    shown = replace(asked, options=options)
    return Answer(model, shown, geometry, need, formula, measurement, found, reason, counsel)


def _estimated(estimator: Estimator, options: Options) -> MemoryEstimate:
    try:
        return estimator(options)
    except DivisionError as error:
        raise Problem(str(error), 2) from error
    except GgufError as error:
        raise Problem(str(error)) from error


def _checked(model: Model, options: Options) -> Options:
    """Refuse what llama-server refuses, and fill in the context that the model was trained with."""
    if type_called(options.cache_type_v).block > 1 and not flash_attention(model.summary, options):
        why = "drop --flash-attn off" if options.flash_attention == "off" else "which this model cannot have"
        raise Problem(f"--cache-type-v {options.cache_type_v} needs FlashAttention; {why}", 2)
    for flag, name in (("-k", options.cache_type_k), ("-v", options.cache_type_v)):
        block = type_called(name).block
        width = model.summary.key_length if flag == "-k" else model.summary.value_length
        if block > 1 and width % block and any(model.summary.head_count_kv):
            raise Problem(f"--cache-type{flag} {name} needs heads that are a multiple of {block}; they are {width}", 2)
    context = options.context or Geometry.of(model.summary, options).context
    return replace(options, context=context)


def find_library(given: Path | None) -> Path | None:
    """Choose the folder of llama.cpp's libraries: the one given, the environment's, the image's, llama-cpp-python's."""
    if given is not None:
        return given
    if os.environ.get(LIBRARY):
        return Path(os.environ[LIBRARY])
    if (IMAGE_FOLDER / "libllama.so").exists():
        return IMAGE_FOLDER
    package = importlib.util.find_spec("llama_cpp")
    places = (Path(place) / "lib" for place in (package and package.submodule_search_locations) or ())
    return next((place for place in places if (place / "libllama.so").exists()), None)


def _measured(model: Model, asked: Asked) -> tuple[Measurement | None, str | None]:
    """Measure if that is wanted and possible; else say why not, where that is worth a word."""
    if asked.measure is False:
        return None, None
    folder = find_library(asked.library)
    if folder is None:
        if asked.measure:
            raise Problem(f"llama.cpp's libraries are not at hand; name their folder by --library, or set {LIBRARY}")
        return None, None
    from paddock.agent.measure import MeasureError, Meter, Subject  # noqa: PLC0415 start-up time

    try:
        with model.on_disk() as path:
            meter = Meter(folder, remembered=_remembered())
            plain = replace(asked.options, backend="generic")
            found = meter.measure(Subject(path, model.digest()), plain)
    except MeasureError as error:
        if asked.measure:
            raise Problem(f"not measured: {error}") from error
        return None, str(error)
    if not plausible(found, Estimator(model.parts, model.summary)(plain)):
        reason = "llama.cpp's answer was thrown away: its weights are not those of the file"
        if asked.measure:
            raise Problem(reason)
        return None, reason
    return found, None


def _remembered() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "paddock" / "measured"


def to_dict(found: Answer) -> JSON:
    """Give the answer as plain data; its keys are a contract that scripts rely on."""
    need = found.need
    return {
        **{place: {kind: need.sum(place, kind) for kind in COUNTED} for place in PLACES},
        "overhead": need.overhead,
        "total": {"device": need.device_total, "host": need.host_total},
        "confidence": need.confidence,
        "addends": [_addend(addend, several=len(need.devices) > 1) for addend in need.addends],
        "advice": [_advice(one) for one in found.advice],
        "devices": [
            {**{kind: need.sum("device", kind, number) for kind in (*COUNTED, "overhead")}, "total": total}
            for number, total in enumerate(need.devices)
        ],
        "source": "formula" if found.measurement is None else "measured",
        "measured": None if found.measurement is None else _measurement(found, found.measurement),
        **({"notMeasured": found.not_measured} if found.not_measured else {}),
        "model": _model(found.model),
        "options": _options(found),
    }


def _addend(one: Addend, *, several: bool) -> JSON:
    found = asdict(one)
    return found if several else {key: value for key, value in found.items() if key != "device"}


def _advice(one: Advice) -> JSON:
    return {"kind": one.kind, "message": one.message, **one.facts}


def _measurement(found: Answer, measurement: Measurement) -> JSON:
    return {
        "ggml": measurement.version,
        "seconds": measurement.seconds,
        "differences": [
            {
                "place": one.place,
                "kind": one.kind,
                "formula": one.formula,
                "measured": one.measured,
                "expected": expected(found.formula, one),
            }
            for one in found.differences
        ],
    }


def _model(model: Model) -> JSON:
    summary = model.summary
    return {
        "name": summary.name,
        "architecture": summary.architecture,
        "quantization": quantization(model.parts, summary.file_type),
        "parameters": summary.parameters,
        "fileBytes": summary.file_bytes,
        "files": summary.files,
        "layers": summary.block_count,
        "contextTrained": summary.context_train,
    }


def _options(found: Answer) -> JSON:
    options = asdict(found.asked.options)
    names = {"cache_type_k": "cacheTypeK", "cache_type_v": "cacheTypeV", "kv_unified": "kvUnified"}
    names |= {
        "flash_attention": "flashAttention",
        "gpu_layers": "gpuLayers",
        "cpu_moe": "cpuMoe",
        "split_mode": "splitMode",
    }
    chosen = {names.get(name, name): value for name, value in options.items()}
    chosen["shares"] = list(options["shares"])
    chosen["overrides"] = [f"{pattern}={where}" for pattern, where in options["overrides"]]
    chosen["gpuLayers"] = "all" if options["gpu_layers"] is None else options["gpu_layers"]
    per_request = found.geometry.context if options["kv_unified"] else found.geometry.cells
    return {**chosen, "contextPerRequest": per_request, "llamaCppBuild": BUILD}


def beside_of(mmproj: str | None, adapters: Sequence[str], draft: str | None) -> Beside:
    """Read what a server holds beside its model; raises Problem."""
    drafting = read_model(draft) if draft else None
    return Beside(
        read_header(mmproj) if mmproj else None,
        tuple(read_header(one) for one in adapters),
        Draft(drafting.parts, drafting.summary) if drafting else None,
    )


def bytes_of(text: str) -> int:
    """Read a size as people write it: 24GiB, 24Gi, 24GB, 24G, 25769803776; raises Problem."""
    plain = "".join(text.split()).removesuffix("B")
    try:
        found = int(parse_quantity(plain))
    except ValueError:
        found = 0
    if found <= 0:
        raise Problem(f"{text!r} is no size; write for example 24GiB, or 24GB for a little less", 2)
    return found
