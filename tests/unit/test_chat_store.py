"""Saved chats: what is taken, and one test for each way a file is refused."""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeRuntime, text_tokens

from dflash_local import SamplingParams
from dflash_local.chat import store
from dflash_local.chat.session import ChatSession
from dflash_local.chat.store import StoreError, load_chat, save_chat

GREEDY = SamplingParams(temperature=0.0)


def new_session(**fields: Any) -> ChatSession:
    engine = FakeEngine([text_tokens("first"), text_tokens("second")], (3,))
    return ChatSession(FakeRuntime(engine, **fields), GREEDY, system="brief")


def say(session: ChatSession, text: str) -> str:
    return "".join(chunk.text for chunk in session.ask(text))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    session = new_session()
    say(session, "hello")
    save_chat(session, tmp_path / "chat.zip")
    return tmp_path / "chat.zip"


def rewrite(path: Path, *, method: int = zipfile.ZIP_STORED, state: bytes | None = b"fake[]", **changes: Any) -> Path:
    with zipfile.ZipFile(path) as archive:
        transcript = json.loads(archive.read(store.TRANSCRIPT))
    transcript.update(changes)
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(store.TRANSCRIPT, json.dumps(transcript))
        if state is not None:
            archive.writestr(store.STATE, state)
    return path


def test_round_trip_with_state(saved: Path) -> None:
    session = new_session()
    assert load_chat(session, saved) == "2 messages loaded"
    assert session.system == "brief"
    assert [m["content"] for m in session.messages] == ["hello", "first"]
    length = session.runtime.engine.n_tokens
    assert length > 0
    say(session, "again")
    assert session.runtime.engine.kept == length  # type: ignore[attr-defined]


def test_without_state_the_transcript_is_decoded_again(saved: Path) -> None:
    session = new_session()
    assert "its state is missing" in load_chat(session, rewrite(saved, state=None))
    assert session.runtime.engine.n_tokens == 0
    assert say(session, "again") == "first"


def test_state_that_the_engine_refuses(saved: Path) -> None:
    session = new_session()
    assert "its state does not fit (the state is of another model)" in load_chat(session, rewrite(saved, state=b"x"))
    assert len(session.messages) == 2


def test_state_of_another_quantization(saved: Path) -> None:
    session = new_session()
    session.runtime.pair.target_info["size"] = 2
    assert "another quantization" in load_chat(session, saved)
    assert len(session.messages) == 2


def test_other_model_is_refused(saved: Path) -> None:
    session = new_session(name="other")
    with pytest.raises(StoreError, match="a chat with another model: its name is 'fake', this model's is 'other'"):
        load_chat(session, saved)
    assert session.messages == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "x"}, "its format is not"),
        ({"version": 2}, "has version 2, this program reads version 1"),
        ({"messages": None}, "lacks"),
        ({"model": []}, "lacks"),
        ({"system": 5}, "lacks"),
        ({"messages": ["x"]}, "message 0 is not"),
        ({"messages": [{"role": "system", "content": "x"}]}, "message 0 is not"),
        ({"messages": [{"role": "user", "content": None}]}, "message 0 is not"),
        ({"method": zipfile.ZIP_DEFLATED}, "chat.json is compressed"),
    ],
)
def test_malformed_transcript_is_refused(saved: Path, changes: dict[str, Any], words: str) -> None:
    session = new_session()
    with pytest.raises(StoreError, match=words):
        load_chat(session, rewrite(saved, **changes))
    assert session.messages == []


def zip_of(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no saved chat, or a damaged one"),
        (b"not a zip", "no saved chat, or a damaged one"),
        (zip_of({"other": b"x"}), "it holds no chat.json"),
        (zip_of({"chat.json": b"{"}), "is no JSON"),
        (zip_of({"chat.json": b"\xff\xfe\x00"}), "is no JSON"),
        (zip_of({"chat.json": b"[" * 200_000}), "is no JSON"),
        (zip_of({"chat.json": b"[]"}), "its format is not"),
    ],
)
def test_malformed_file_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=words):
        load_chat(new_session(), path)


def test_damaged_file_is_refused(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[60] ^= 0xFF
    saved.write_bytes(data)
    with pytest.raises(StoreError, match="no saved chat, or a damaged one"):
        load_chat(new_session(), saved)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        load_chat(new_session(), tmp_path / "none.zip")
    with pytest.raises(StoreError, match="is no regular file"):
        load_chat(new_session(), tmp_path)


def test_overlong_transcript_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_TRANSCRIPT", 10)
    with pytest.raises(StoreError, match="larger than 10 bytes"):
        load_chat(new_session(), saved)


def test_saving_replaces_only_chats(saved: Path, tmp_path: Path) -> None:
    save_chat(new_session(), saved)
    other = tmp_path / "thesis.txt"
    other.write_text("precious")
    with pytest.raises(StoreError, match="is no saved chat: it is left alone"):
        save_chat(new_session(), other)
    assert other.read_text() == "precious"


def test_failed_write_leaves_nothing(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(StoreError, match="No space left on device"):
        save_chat(new_session(), saved)
    assert saved.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["chat.zip"]


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_is_no_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero")
    if kind == "pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)
    with pytest.raises(StoreError, match="exists and is no saved chat"):
        save_chat(new_session(), path)


def test_leftovers_of_a_killed_save_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".a.zip.x.tmp", tmp_path / ".a.zip.y.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    save_chat(new_session(), tmp_path / "a.zip")
    assert (old.exists(), new.exists()) == (False, True)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written: No such file"):
        save_chat(new_session(), tmp_path / "none" / "chat.zip")
