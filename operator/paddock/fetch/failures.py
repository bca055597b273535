"""What can go wrong with a source: six kinds, and whether it is worth another try."""

from paddock.api.fetched import Failed, FailureClass


class FetchError(Exception):
    """A source cannot be read or fetched. The message is for users: a sentence with numbers, without secrets."""

    def __init__(
        self,
        failure: FailureClass,
        message: str,
        *,
        transient: bool = False,
        retry_after: float | None = None,
        changed: bool = False,
    ) -> None:
        super().__init__(message)
        self.failure: FailureClass = failure
        self.message = message
        self.transient = transient
        """Whether the same request may work a little later."""
        self.retry_after = retry_after
        """Seconds that the server asked to wait."""
        self.changed = changed
        """Whether the source has other content than when it was opened."""

    def said(self) -> Failed:
        """Give it as the last line of the program."""
        return Failed(failure=self.failure, message=self.message, retry=self.transient)
