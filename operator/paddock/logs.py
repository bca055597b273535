"""The log of operator and agent: one line for each event, as text or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from typing_extensions import override


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the keys that collectors look for."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Give the record as JSON; an exception's traceback is one of its values."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_up_logging(form: Literal["text", "json"], level: str) -> None:
    """Log to standard error in the wanted form; libraries only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("kopf", "aiohttp", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
