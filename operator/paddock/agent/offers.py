"""Between the agent and its device plugin: two small files in a folder that both containers of the pod have.

The plugin needs root on the host to reach the kubelet's socket, so it does nothing else: it neither listens to the
network nor reads models. What it offers stands in `offers.json`, written here; what became of it in `plugin.json`,
written there and touched every few seconds, so that its silence shows.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from paddock.api.binding import DevicePlugin
from paddock.api.report import DeviceTrouble, ListedDevice
from paddock.core.offers import Offer, offers_of, resource_of, sound

_log = logging.getLogger(__name__)

OFFERS, STATE = "offers.json", "plugin.json"
BEAT = 2.0
"""Seconds between two signs of life of the plugin."""
SILENT = 10.0
"""Seconds without one after which it counts as gone."""
_PAUSE = 1.0

_Offers = TypeAdapter(tuple[Offer, ...])
_State = TypeAdapter(dict[str, DevicePlugin])


def write(file: Path, text: str) -> None:
    """Replace a file at once."""
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(text)
    draft.replace(file)


def read_offers(folder: Path) -> tuple[Offer, ...]:
    """Give what is to be offered; nothing while the agent has not said."""
    try:
        return tuple(one for one in _Offers.validate_json((folder / OFFERS).read_bytes()) if sound(one))
    except (OSError, ValidationError):
        return ()


def write_state(folder: Path, state: dict[str, DevicePlugin]) -> None:
    """Tell the agent what is registered and what is handed out."""
    write(folder / STATE, json.dumps({name: one.to_dict() for name, one in sorted(state.items())}))


class Offers:
    """The agent's side."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._offers: tuple[Offer, ...] = read_offers(folder) if folder is not None else ()
        self._state: dict[str, DevicePlugin] = {}

    def dress(self, devices: Sequence[ListedDevice], troubles: Sequence[DeviceTrouble]) -> list[ListedDevice]:
        """Offer these devices, all that a listing found, and say of each how the plugin gives it out.

        An empty listing is one that failed: what was offered before stays as it is.
        """
        if self._folder is None:
            return list(devices)
        offers = offers_of(devices, troubles, self._offers) if devices else self._offers
        if offers != self._offers:
            self._offer(self._folder / OFFERS, offers)
        known = {one.resource for one in self._offers}
        return [
            one.model_copy(update={"plugin": self._state[name]})
            if (name := resource_of(one)) in known and name in self._state and one.duplicate_of is None
            else one
            for one in devices
        ]

    def _offer(self, file: Path, offers: tuple[Offer, ...]) -> None:
        try:
            write(file, json.dumps([asdict(one) for one in offers]))
        except OSError as error:  # it is tried again with the next listing; the report must not be missing for it
            _log.warning("the device plugin cannot be told of %d GPUs: %s", len(offers), error)
        else:
            self._offers = offers

    async def follow(self, changed: Callable[[], None]) -> None:
        """Read what the plugin says, for ever; calls `changed` when it says something new."""
        if self._folder is None:
            await asyncio.Event().wait()
            return
        while True:
            state = self._read(self._folder / STATE)
            if state != self._state:
                self._state = state
                _log.info("device plugin: %s", _in_words(state))
                changed()
            await asyncio.sleep(_PAUSE)

    def _read(self, file: Path) -> dict[str, DevicePlugin]:
        try:
            state = _State.validate_json(file.read_bytes())
            silent = time.time() - file.stat().st_mtime > SILENT
        except (OSError, ValidationError):
            return {name: one.model_copy(update={"registered": False}) for name, one in self._state.items()}
        return {
            name: one.model_copy(update={"registered": one.registered and not silent}) for name, one in state.items()
        }


def _in_words(state: dict[str, DevicePlugin]) -> str:
    told = (f"{name} {'registered' if one.registered else 'not registered'}" for name, one in sorted(state.items()))
    return ", ".join(told) or "offers nothing"
