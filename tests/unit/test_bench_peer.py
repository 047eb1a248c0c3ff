"""Servers as peers: what is sent, which figures are taken, and each way in which a server can fail."""

from __future__ import annotations

import builtins
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dflash_local.bench.peer import Peer, PeerError, error_text, parse_peer
from dflash_local.bench.runs import Task
from dflash_local.bench.suite import Prompt
from dflash_local.sampling import SamplingParams
from support.peer_server import MODEL, Script, peer_server

TASK = Task(Prompt("p", "c", 16, ({"role": "user", "content": "Count."},)), (), SamplingParams(temperature=0.0), 16)


@contextmanager
def opened(script: Script, model: str = MODEL, timeout: float = 20.0) -> Iterator[Peer]:
    with peer_server(script) as address:
        peer = Peer("far", f"{address}/v1", model, timeout)
        try:
            yield peer
        finally:
            peer.close()


def failure(script: Script, **options: Any) -> str:
    with opened(script, **options) as peer, pytest.raises(PeerError) as caught:
        peer.run(TASK)
    assert str(caught.value).startswith("peer far (http://127.0.0.1:")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "base"),
    [
        ("http://localhost:8080", "localhost:8080", "http://localhost:8080/v1"),
        ("llama=http://localhost:8080/", "llama", "http://localhost:8080/v1"),
        ("https://host/api/v1/", "host", "https://host/api/v1"),
        ("x=http://[::1]:9/v1/chat/completions", "x", "http://[::1]:9/v1"),
        ("http://h:1/v1?a=b", "h:1", "http://h:1/v1"),
    ],
)
def test_addresses(text: str, name: str, base: str) -> None:
    assert parse_peer(text) == (name, base)


@pytest.mark.parametrize("text", ["", "localhost:8080", "ftp://host", "http://", "x=", "http://host:port"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        parse_peer(text)


def test_figures_by_the_stream_and_usage() -> None:
    script = Script()
    with opened(script, model="") as peer:
        peer.connect()
        run = peer.run(TASK)
    assert peer.model == MODEL
    assert (run.predicted_n, run.text, run.finish_reason) == (4, "one two three four", "stop")
    assert run.predicted_ms > 0
    assert run.draft_rounds is None
    assert script.requests[-1] == {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": 16,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_pieces_count_without_usage() -> None:
    with opened(Script(usage=None)) as peer:
        assert peer.run(TASK).predicted_n == 4


def test_sampling_and_schemas_are_sent() -> None:
    script = Script()
    prompt = Prompt("p", "c", 16, TASK.prompt.messages, json_schema={"type": "object"})
    with opened(script) as peer:
        peer.run(Task(prompt, (), SamplingParams(temperature=0.8, top_p=0.9, seed=3), 16))
    sent = script.requests[0]
    assert (sent["temperature"], sent["top_p"], sent["seed"]) == (0.8, 0.9, 3)
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_figures_by_the_servers_timings() -> None:
    timings = {"predicted_n": 11, "predicted_ms": 100.0, "prompt_ms": 5.0}
    with opened(Script(timings=timings)) as peer:
        run = peer.run(TASK)
    assert (run.tps, run.prompt_ms, run.draft_rounds) == (pytest.approx(100.0), 5.0, None)
    # llama-server tells drafted and accepted tokens: 10 tokens after the first, 6 accepted, so 4 batches.
    with opened(Script(timings=timings | {"draft_n": 28, "draft_n_accepted": 6})) as peer:
        run = peer.run(TASK)
    assert (run.draft_rounds, run.draft_n_accepted) == (4, 6)
    with opened(Script(timings=timings | {"draft_n": 28, "draft_n_accepted": 6, "draft_rounds": 3})) as peer:
        assert peer.run(TASK).draft_rounds == 3


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    for model in ("", "m"):
        peer = Peer("far", address, model)
        with pytest.raises(PeerError, match=r"no connection .*; is the server running there"):
            peer.connect()
        peer.close()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            Script(models_status=404, models={"error": "no such page"}),
            r"404 for the list .* --peer-model \(no such page\)",
        ),
        (Script(models={"models": []}), "not in OpenAI's form; name one with --peer-model"),
        (Script(models="<html>"), "not in OpenAI's form"),
        (Script(models={"data": []}), "no model loaded"),
        (Script(models={"data": [{"id": "a"}, {"id": "b"}]}), "several models, name one with --peer-model: a, b"),
    ],
)
def test_the_model_cannot_be_found(script: Script, words: str) -> None:
    with opened(script, model="") as peer, pytest.raises(PeerError, match=words):
        peer.connect()


def test_wrong_model_and_wrong_path() -> None:
    said = failure(Script(status=404, error='{"error": {"message": "model \\"x\\" not found"}}'), model="x")
    assert said.endswith("404 for model 'x' (--peer-model): model \"x\" not found")
    assert failure(Script(status=404)).endswith("404 for model 'stand-in' (--peer-model): Not Found")
    assert failure(Script(status=500, error="oh\n\tno")).endswith("500: oh no")


def test_an_answer_that_is_no_stream() -> None:
    assert "the answer is application/json, expected a stream" in failure(Script(content_type="application/json"))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (["data: {half\n\n"], "holds what is no JSON: {half"),
        (["data: " + "[" * 100_000 + "\n\n"], "holds what is no JSON"),
        (["data: [1]\n\n"], "an error in the stream"),
        (["<html>\n"], "holds what is no event: <html>"),
        ([{"error": {"message": "out of memory"}}], "an error in the stream: out of memory"),
        ([{"choices": [{"delta": "text"}]}], "not in OpenAI's form"),
        ([{"choices": 7}], "not in OpenAI's form"),
        ([{"choices": [{"delta": {"content": 7}}]}], "not in OpenAI's form"),
        ([{"choices": [{"delta": {}, "finish_reason": "stop"}]}], "its answer holds no text"),
        ([{"choices": [], "timings": {"predicted_n": "many", "predicted_ms": 1}}], "figures are no numbers"),
        ([{"choices": [], "usage": {"completion_tokens": []}}, {"choices": [], "usage": 3}], "figures are no numbers"),
    ],
)
def test_garbage_in_the_stream(events: list[Any], words: str) -> None:
    assert words in failure(Script(events=events))


def test_streams_that_break_off() -> None:
    assert "broke the connection off" in failure(Script(close_after=0))
    ended = Script(events=[{"choices": [{"delta": {"content": "one"}}]}], done=False)
    assert "ended in the middle of the answer" in failure(ended)


def test_silence_has_a_limit() -> None:
    assert failure(Script(stall=True), timeout=0.3).endswith("no answer within 0.3 s (--peer-timeout)")
    assert "no answer within 0.3 s" in failure(Script(events=[], stall=True), timeout=0.3)


def test_comments_and_other_fields_are_passed_over() -> None:
    events = [": keep-alive\n\n", "event: message\nid: 1\n", {"choices": [{"delta": {"reasoning_content": "hm"}}]}]
    with opened(Script(events=events)) as peer:
        assert peer.run(TASK).text == "hm"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"detail": "bad"}', "bad"),
        ('{"error": {"message": "m"}}', "m"),
        ('{"error": {"code": 1}}', '{"code": 1}'),
        ("x" * 500, "x" * 200 + "..."),
    ],
)
def test_error_bodies(body: str, text: str) -> None:
    assert error_text(body) == text


def test_without_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any) -> Any:
        if name == "httpx":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(PeerError, match=r"pip install 'dflash-local\[bench\]'"):
        Peer("far", "http://h/v1")
