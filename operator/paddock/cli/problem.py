"""What goes wrong at the command line, told in one line that says what to do next."""


class Problem(Exception):  # noqa: N818 it is what the user is told, not a defect
    """Ends the command; the text is shown on stderr, without a traceback."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.message, self.code = message, code


class ApiError(Exception):
    """The API server refused a request, or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    @property
    def not_found(self) -> bool:
        """The object, or its kind, does not exist."""
        return self.status == 404  # noqa: PLR2004 HTTP

    @property
    def forbidden(self) -> bool:
        """The user lacks the right."""
        return self.status == 403  # noqa: PLR2004 HTTP


def problem_of(error: ApiError) -> Problem:
    """Turn a refusal of the API server into what the user can do."""
    text = error.message.strip().rstrip(".")
    if error.status == 0 and error.reason == "NoKubeconfig":
        return Problem(f"{text}; set KUBECONFIG or pass --kubeconfig FILE")
    if error.reason == "BadAnswer":
        return Problem(f"what answers is no API server ({text}); check the server's address, and what is in between")
    if error.status == 0:
        return Problem(f"the API server does not answer: {text}; is the cluster up, and is --context the right one?")
    if error.status == 401:  # noqa: PLR2004 HTTP
        return Problem("the API server does not accept your credentials; log in again, or pass another --context")
    if error.forbidden:
        return Problem(f"not allowed: {text}; ask your administrator for the right, for example the cluster role view")
    if error.not_found and "paddock.dev" not in text:
        return Problem(
            "this cluster does not know Paddock's kinds; install the chart (helm install paddock), "
            "or the kinds alone: paddock crds | kubectl apply -f -"
        )
    return Problem(f"the API server refused: {text or error.reason or error.status}")
