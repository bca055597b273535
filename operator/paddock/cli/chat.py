"""`paddock chat`: talk to a model through the API server; nothing needs to be exposed."""

import base64
import json
import sys
from dataclasses import dataclass, field

from paddock.api.modeldeployment import Mode
from paddock.api.vocabulary import ConditionType
from paddock.cli.access import JSON, find
from paddock.cli.output import Output
from paddock.cli.problem import ApiError, Problem
from paddock.cli.reading import Model, model_of
from paddock.cli.target import Session

PROXY = "/api/v1/namespaces/{namespace}/services/{name}:http/proxy/v1/chat/completions"
BAD_GATEWAY = (502, 503, 504)


@dataclass
class Conversation:
    """A model and what was said so far."""

    session: Session
    name: str
    headers: dict[str, str]
    max_tokens: int
    messages: list[JSON] = field(default_factory=list)

    async def say(self, text: str) -> JSON:
        """Send a message and give the whole answer."""
        said = {"role": "user", "content": text}
        body = {"model": self.name, "messages": [*self.messages, said], "max_tokens": self.max_tokens}
        path = PROXY.format(namespace=self.session.namespace, name=self.name)
        try:
            answer = json.loads(await self.session.api.ask(path, body, self.headers))
            back = content_of(answer["choices"][0]["message"])
        except ApiError as error:
            raise _explained(error, self.name) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Problem(
                f"{self.name} answered something that is no completion; see paddock logs {self.name}"
            ) from error
        self.messages += [said, {"role": "assistant", "content": back}]
        return dict(answer)


def content_of(message: JSON) -> str:
    """Give what was said; thinking models keep their thoughts apart."""
    return str(message.get("content") or message.get("reasoning_content") or "").strip()


async def chat(
    session: Session, name: str, prompt: str | None, *, as_json: bool, max_tokens: int, api_key: str | None
) -> None:
    """Ask once with a prompt, or talk line by line without."""
    model = model_of(await find(session.api, session.namespace, name))
    _check(model)
    key = api_key or await _key(session, model)
    # The API server takes the Authorization header for its own; llama-server reads this one as well.
    conversation = Conversation(session, name, {"X-Api-Key": key} if key else {}, max_tokens)
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise Problem("nothing to say: give a PROMPT, or text on standard input", 2)
    if prompt is not None:
        answer = await conversation.say(prompt)
        if as_json:
            session.screen.data(answer, Output.JSON)
        else:
            session.screen.raw(content_of(answer["choices"][0]["message"]) + "\n")
        return
    await _talk(conversation, as_json=as_json)


async def _talk(conversation: Conversation, *, as_json: bool) -> None:
    import readline  # noqa: F401, PLC0415 gives input() history and editing

    screen = conversation.session.screen
    screen.line(f"Talking to {conversation.name}. An empty line or Ctrl-D ends it.")
    while True:
        try:
            text = input("> ").strip()  # noqa: ASYNC250 nothing else runs while a person types
        except EOFError:
            screen.line()
            return
        if not text:
            return
        answer = await conversation.say(text)
        if as_json:
            screen.data(answer, Output.JSON)
        else:
            screen.raw(content_of(answer["choices"][0]["message"]) + "\n\n")


def _check(model: Model) -> None:
    """Refuse what cannot answer, and say what can be done instead."""
    mode = model.spec.serving.mode if model.spec else Mode.CHAT
    if mode is not Mode.CHAT:
        path = "/v1/embeddings" if mode is Mode.EMBEDDING else "/v1/rerank"
        raise Problem(
            f"{model.name} serves mode {mode.value}, which does not chat; post to {path} of "
            f"{(model.status.endpoint or 'its Service').removesuffix('/v1')} instead"
        )
    if model.status.ready_replicas:
        return
    found = model.condition(ConditionType.AVAILABLE)
    why = f"{found.reason}: {found.message}" if found else "the operator has not looked at it yet"
    raise Problem(f"{model.name} is not ready ({why}); see paddock explain {model.name}")


async def _key(session: Session, model: Model) -> str | None:
    """Read the key that the server asks for, when there is one."""
    reference = model.spec.serving.api_key_secret_ref if model.spec else None
    if reference is None:
        return None
    path = f"/api/v1/namespaces/{session.namespace}/secrets/{reference.name}"
    try:
        data = (await session.api.get(path)).get("data") or {}
    except ApiError as error:
        why = "you may not read it" if error.forbidden else "it does not exist" if error.not_found else error.message
        raise Problem(
            f"{model.name} asks for the key in Secret {reference.name}, but {why}; pass --api-key KEY"
        ) from error
    if reference.key not in data:
        raise Problem(f"Secret {reference.name} has no key {reference.key!r}; pass --api-key KEY")
    return base64.b64decode(data[reference.key]).decode().strip()


def _explained(error: ApiError, name: str) -> ApiError | Problem:
    if error.status == 401:  # noqa: PLR2004 HTTP
        return Problem(f"{name} does not accept the key (or the API server your login); pass --api-key KEY")
    if error.status in BAD_GATEWAY:
        return Problem(f"{name} cannot be reached: {error.message}; see paddock get {name}")
    if error.not_found and "services" in error.message:
        return Problem(f"{name} has no Service; is the operator running? See paddock explain {name}")
    return error
