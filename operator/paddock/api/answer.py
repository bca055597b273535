"""What `paddock-fetch header` says; apart from fetched.py, since what only fetches need not know of headers."""

from paddock.api.base import Model
from paddock.api.fetched import Failed, Origin
from paddock.api.report import HeaderFault, HeaderSummary


class SourceAnswer(Model):
    """Answer of `paddock-fetch header`, after PADDOCK-HEADER on its line: origin and summary, or why not."""

    origin: Origin | None = None
    """What the source is; also beside a fault, when the files are there but hold no usable model."""
    summary: HeaderSummary | None = None
    """The header, in short."""
    fault: HeaderFault | None = None
    """What is wrong with the header."""
    failure: Failed | None = None
    """Why the source could not be read."""
