"""A stand-in for an OpenAI-compatible server, honest or broken, on a free port of the loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "stand-in"
WORDS = ("one ", "two ", "three ", "four")


@dataclass
class Script:
    """How the server behaves; `requests` keeps the bodies that it got."""

    models: Any = field(default_factory=lambda: {"data": [{"id": MODEL}]})
    models_status: int = 200
    status: int = 200
    error: str = ""
    content_type: str = "text/event-stream; charset=utf-8"
    events: list[Any] | None = None  # None: WORDS, then the finish, usage and timings
    timings: dict[str, Any] | None = None
    usage: dict[str, Any] | None = field(default_factory=lambda: {"completion_tokens": 4})
    done: bool = True
    stall: bool = False  # after the events nothing more comes, and the connection stays
    close_after: int = -1  # honest answers before the connection is cut in the middle
    requests: list[dict[str, Any]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def stream(self) -> list[Any]:
        if self.events is not None:
            return self.events
        pieces: list[Any] = [{"choices": [{"delta": {"role": "assistant", "content": None}}]}]
        pieces += [{"choices": [{"delta": {"content": word}}]} for word in WORDS]
        last: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        if self.timings:
            last["timings"] = self.timings
        return [*pieces, last, *([{"choices": [], "usage": self.usage}] if self.usage else [])]


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _json(self, status: int, value: Any) -> None:
            data = (value if isinstance(value, str) else json.dumps(value)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._json(script.models_status, script.models)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            script.requests.append(body)
            if script.status != 200:
                self._json(script.status, script.error)
                return
            self.send_response(200)
            self.send_header("Content-Type", script.content_type)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            cut = 0 <= script.close_after < len(script.requests)
            events = script.stream()
            for event in events[:2] if cut else events:
                text = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
                self._chunk(text)
            if script.stall:
                script.released.wait(30)
            if cut:
                self.close_connection = True
                return
            self._chunk("data: [DONE]\n\n" if script.done else "")
            self.wfile.write(b"0\r\n\r\n")

        def _chunk(self, text: str) -> None:
            if text:
                data = text.encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()

    return Handler


@contextmanager
def peer_server(script: Script) -> Iterator[str]:
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(script))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        script.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
