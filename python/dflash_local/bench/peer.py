"""Measures a server that speaks OpenAI's protocol, by streamed chat completions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dflash_local._errors import Error
from dflash_local.bench.runs import Run, Task
from dflash_local.bench.suite import Prompt
from dflash_local.sampling import SamplingParams

MAX_BODY = 2000  # characters of an error's body that are looked at
SHOWN = 200
PREFIX = "peer "
PIECES = ("reasoning_content", "reasoning", "content")  # of a delta; servers differ in how they name thoughts


class PeerError(Error):
    """A server that cannot be reached, or does not answer as such a server must."""


def import_httpx() -> Any:
    """The HTTP client. Raises PeerError that says what to install."""
    try:
        import httpx
    except ImportError as error:
        raise PeerError("--peer needs httpx: pip install 'dflash-local[bench]'", "peer") from error
    return httpx


def parse_peer(text: str) -> tuple[str, str]:
    """Name and base address out of [NAME=]URL; without a path, /v1 is added. Raises ValueError."""
    name, separator, url = text.partition("=")
    if not separator or "://" in name:
        name, url = "", text
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no address: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is no address of a server, expected [NAME=]http://HOST:PORT[/v1]")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    host = f"{parts.hostname}:{port}" if port else parts.hostname
    return name or host, f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}..."


def error_text(body: str) -> str:
    """The message inside an error's body, in whichever of the usual places, or the body itself."""
    try:
        found = json.loads(body)
    except ValueError:
        return _cut(body)
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return _cut(found if isinstance(found, str) else json.dumps(found))


@dataclass(slots=True)
class _Stream:
    """What one stream has told so far."""

    started: float
    first: float | None = None
    last: float | None = None
    n_pieces: int = 0
    text: str = ""
    finish: str = ""
    done: bool = False
    usage: Mapping[str, Any] | None = None
    timings: Mapping[str, Any] | None = None


class Peer:
    """One server. `label` stands in the tables; model "" asks the server which one it has."""

    def __init__(self, label: str, base: str, model: str = "", timeout: float = 120.0) -> None:
        self._httpx = import_httpx()
        self.label, self._base, self._timeout = label, base, timeout
        self.model = model
        self._client = self._httpx.Client(timeout=self._httpx.Timeout(timeout, connect=min(timeout, 10.0)))

    @property
    def name(self) -> str:
        """Among the sides of a comparison; no name of another side."""
        return f"{PREFIX}{self.label}"

    @property
    def base(self) -> str:
        return self._base

    def close(self) -> None:
        self._client.close()

    def error(self, why: str) -> PeerError:
        return PeerError(f"peer {self.label} ({self._base}): {why}", "peer")

    def connect(self) -> None:
        """Finds the model and asks it for a few tokens. Raises PeerError."""
        if not self.model:
            self.model = self._find_model()
        prompt = Prompt("hello", "", 8, ({"role": "user", "content": "Hello"},))
        self.run(Task(prompt, (), SamplingParams(temperature=0.0), 8))

    def _find_model(self) -> str:
        try:
            response = self._client.get(f"{self._base}/models")
        except self._httpx.HTTPError as error:
            raise self._transport_error(error) from error
        if response.status_code != 200:
            raise self.error(
                f"{response.status_code} for the list of its models; name the model with --peer-model "
                f"({error_text(response.text[:MAX_BODY])})"
            )
        try:
            names = [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, LookupError, TypeError) as error:
            raise self.error("its list of models is not in OpenAI's form; name one with --peer-model") from error
        if not names:
            raise self.error("it has no model loaded")
        if len(names) > 1:
            raise self.error(f"it has several models, name one with --peer-model: {_cut(', '.join(names))}")
        return names[0]

    def _transport_error(self, error: Exception) -> PeerError:
        httpx = self._httpx
        if isinstance(error, httpx.ConnectTimeout):
            return self.error("no connection within the time limit; is the address right?")
        if isinstance(error, httpx.ConnectError):
            return self.error(f"no connection ({error}); is the server running there?")
        if isinstance(error, httpx.TimeoutException):
            return self.error(f"no answer within {self._timeout:g} s (--peer-timeout)")
        if isinstance(error, httpx.RemoteProtocolError):
            return self.error(f"it broke the connection off ({error})")
        return self.error(f"{type(error).__name__}: {error}")

    def _body(self, task: Task) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(task.prompt.messages),
            "max_tokens": task.max_tokens,
            "temperature": task.params.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if task.params.temperature > 0:
            body |= {"top_p": task.params.top_p, "seed": task.params.seed}
        if task.prompt.json_schema is not None:
            schema = {"name": "answer", "schema": task.prompt.json_schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def run(self, task: Task) -> Run:
        """One answer. Speed by the server's own timings where it gives them, else by the stream's clock and usage.

        Raises PeerError."""
        try:
            with self._client.stream("POST", f"{self._base}/chat/completions", json=self._body(task)) as response:
                if response.status_code != 200:
                    raise self._status_error(response)
                kind = response.headers.get("content-type", "")
                if not kind.startswith("text/event-stream"):
                    raise self.error(f"the answer is {kind or 'of no type'}, expected a stream (text/event-stream)")
                return self._measured(self._read(response, time.perf_counter()))
        except self._httpx.HTTPError as error:
            raise self._transport_error(error) from error

    def _status_error(self, response: Any) -> PeerError:
        body = "".join(response.iter_text())[:MAX_BODY]
        hint = f" for model {self.model!r} (--peer-model)" if response.status_code in (400, 404) else ""
        return self.error(f"{response.status_code}{hint}: {error_text(body) or response.reason_phrase}")

    def _read(self, response: Any, started: float) -> _Stream:
        stream = _Stream(started)
        for data in self._events(response):
            if data == "[DONE]":
                stream.done = True
                break
            try:
                event = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise self.error(f"its stream holds what is no JSON: {_cut(data)}") from error
            if not isinstance(event, dict) or "error" in event:
                raise self.error(f"an error in the stream: {error_text(data)}")
            self._take(stream, event)
        if not stream.done and not stream.finish:
            raise self.error("its stream ended in the middle of the answer")
        return stream

    def _events(self, response: Any) -> Iterator[str]:
        deadline = time.monotonic() + 10 * self._timeout
        for line in response.iter_lines():
            if time.monotonic() > deadline:
                raise self.error(f"one answer took more than {10 * self._timeout:g} s")
            if line.startswith("data:"):
                yield line[5:].strip()
            elif line and not line.startswith((":", "event:", "id:", "retry:")):
                raise self.error(f"its stream holds what is no event: {_cut(line)}")

    def _take(self, stream: _Stream, event: Mapping[str, Any]) -> None:
        try:
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                piece = "".join(delta.get(key) or "" for key in PIECES)
                if piece:
                    stream.last = time.perf_counter()
                    stream.first = stream.first or stream.last
                    stream.n_pieces += 1
                    stream.text += piece
                stream.finish = choice.get("finish_reason") or stream.finish
            stream.usage = event.get("usage") or stream.usage
            stream.timings = event.get("timings") or stream.timings
        except (AttributeError, TypeError) as error:
            raise self.error(f"an event of its stream is not in OpenAI's form: {_cut(json.dumps(event))}") from error

    def _measured(self, stream: _Stream) -> Run:
        timings = stream.timings or {}
        try:
            if "predicted_n" in timings and "predicted_ms" in timings:
                return _by_timings(timings, stream)
            n = int((stream.usage or {}).get("completion_tokens") or stream.n_pieces)
        except (TypeError, ValueError, AttributeError) as error:
            raise self.error(
                f"its figures are no numbers: {_cut(json.dumps(stream.timings or stream.usage))}"
            ) from error
        if stream.first is None or stream.last is None:
            raise self.error("its answer holds no text")
        return Run(
            predicted_n=n,
            predicted_ms=1e3 * (stream.last - stream.first),
            prompt_ms=1e3 * (stream.first - stream.started),
            text=stream.text,
            finish_reason=stream.finish,
        )


def _by_timings(timings: Mapping[str, Any], stream: _Stream) -> Run:
    """llama-server's figures, which our own server gives too."""
    n, accepted = int(timings["predicted_n"]), timings.get("draft_n_accepted")
    drafted = timings.get("draft_n")
    rounds = timings.get("draft_rounds")
    if rounds is None and drafted:
        # The prompt's batch gives the first token; every other batch gives one more than it had accepted.
        rounds = n - 1 - int(accepted or 0)
    return Run(
        predicted_n=n,
        predicted_ms=float(timings["predicted_ms"]),
        prompt_ms=float(timings["prompt_ms"]) if "prompt_ms" in timings else None,
        text=stream.text,
        finish_reason=stream.finish,
        draft_rounds=None if rounds is None else int(rounds),
        draft_n=None if drafted is None else int(drafted),
        draft_n_accepted=None if accepted is None else int(accepted),
    )
