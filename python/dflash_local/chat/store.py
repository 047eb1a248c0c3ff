"""Conversations in files: a zip with the transcript and the engine's state, trusted in nothing."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from dflash_local._errors import Error
from dflash_local.chat.session import ChatRuntime, ChatSession
from dflash_local.chat.template import Message

FORMAT = "dflash-local chat"
VERSION = 1
TRANSCRIPT = "chat.json"
STATE = "engine.bin"
MAX_TRANSCRIPT = 64 * 2**20
LEFTOVER_AGE = 600.0  # seconds after which an unfinished file is nobody's
_ROLES = frozenset({"user", "assistant"})


class StoreError(Error):
    """A chat file that cannot be written, or read as a conversation with this model."""


def _identity(runtime: ChatRuntime) -> dict[str, Any]:
    info = runtime.pair.target_info
    return {
        "architecture": runtime.metadata.get("general.architecture", ""),
        "name": runtime.name,
        "n_vocab": info.get("n_vocab", 0),
        "size": info.get("size", 0),
        "drafter": runtime.drafter_name,
    }


def save_chat(session: ChatSession, path: Path) -> None:
    """Writes the conversation, whole or not at all. Raises StoreError in words.

    A file that is there already is replaced only if it is a chat of ours."""
    if path.exists() and not _is_chat(path):
        raise StoreError(f"{path} exists and is no saved chat: it is left alone, choose another name")
    transcript = {
        "format": FORMAT,
        "version": VERSION,
        "model": _identity(session.runtime),
        "system": session.system,
        "messages": session.messages,
    }
    state = session.runtime.engine.save()
    temporary: str | None = None
    _drop_leftovers(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                archive.writestr(TRANSCRIPT, json.dumps(transcript, ensure_ascii=False, indent=1))
                archive.writestr(STATE, state)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        temporary = None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _drop_leftovers(path: Path) -> None:
    """Removes what a killed program left of an earlier save; another one may be saving right now."""
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > LEFTOVER_AGE:
                old.unlink()


def load_chat(session: ChatSession, path: Path) -> str:
    """Makes a stored conversation that of `session`; returns a line that says what was found.

    Raises StoreError, the session unchanged, for a file that is malformed or of another model. Without a fitting engine
    state the transcript is taken, and decoded again with the next message."""
    transcript, state = _read(path)
    system, messages, model = _check_transcript(path, transcript)
    ours = _identity(session.runtime)
    for key in ("architecture", "name", "n_vocab"):
        if model.get(key) != ours[key]:
            raise StoreError(
                f"{path} is a chat with another model: its {key} is {model.get(key)!r}, this model's is {ours[key]!r}"
            )
    turns = f"{len(messages)} messages loaded"
    note = "its state is missing: it is decoded again with the next message"
    engine = session.runtime.engine
    if state is not None and model.get("size") == ours["size"]:
        try:
            engine.restore(state)
        except ValueError as error:
            note = f"its state does not fit ({error}): it is decoded again with the next message"
        else:
            session.replace(system, messages)
            return turns
    elif state is not None:
        note = "its state is that of another quantization: it is decoded again with the next message"
    engine.reset()
    session.replace(system, messages)
    return f"{turns}; {note}"


def _is_chat(path: Path) -> bool:
    if not path.is_file():  # a device has no end, a pipe no beginning
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return TRANSCRIPT in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _read(path: Path) -> tuple[bytes, bytes | None]:
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is no regular file")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if TRANSCRIPT not in names or len(set(names)) != len(names):
                raise StoreError(f"{path} is no saved chat: it holds no {TRANSCRIPT}, or more than one")
            # Ours are stored as they are: what is compressed could unfold to any size.
            for name in (TRANSCRIPT, STATE):
                if name in names and archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
                    raise StoreError(f"{path} is no saved chat: its {name} is compressed")
            if archive.getinfo(TRANSCRIPT).file_size > MAX_TRANSCRIPT:
                raise StoreError(f"{path}: the transcript is larger than {MAX_TRANSCRIPT} bytes")
            return archive.read(TRANSCRIPT), archive.read(STATE) if STATE in names else None
    except (OSError, EOFError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
        if isinstance(error, StoreError):
            raise
        if isinstance(error, zipfile.BadZipFile):
            raise StoreError(
                f"{path} is no saved chat, or a damaged one: {error}; load a file that /save wrote"
            ) from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StoreError(f"{path} cannot be read as a saved chat: {reason}") from error


def _check_transcript(path: Path, data: bytes) -> tuple[str | None, list[Message], dict[str, Any]]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: its {TRANSCRIPT} is no JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise StoreError(f"{path} is no saved chat: its format is not {FORMAT!r}")
    if found.get("version") != VERSION:
        raise StoreError(f"{path} has version {found.get('version')!r}, this program reads version {VERSION}")
    system, messages, model = found.get("system"), found.get("messages"), found.get("model")
    if not (system is None or isinstance(system, str)) or not isinstance(model, dict) or not isinstance(messages, list):
        raise StoreError(f"{path}: the transcript lacks its system prompt, messages or model")
    out: list[Message] = []
    for number, message in enumerate(messages):
        if (
            not isinstance(message, dict)
            or message.get("role") not in _ROLES
            or not isinstance(message.get("content"), str)
        ):
            raise StoreError(f"{path}: message {number} is not a user's or an assistant's text")
        out.append({"role": message["role"], "content": message["content"]})
    return system, out, model
