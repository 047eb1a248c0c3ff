"""`dflash-local chat`: a conversation at the terminal or from a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_local.chat.repl import chat
from dflash_local.chat.screen import Screen
from dflash_local.chat.session import ChatSession

if TYPE_CHECKING:
    from dflash_local.runtime import Runtime
    from dflash_local.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class ChatOptions:
    params: SamplingParams
    system: str | None
    max_tokens: int
    draft_rows: int
    greet: bool


def run_chat(runtime: Runtime, options: ChatOptions) -> int:
    """Runs the chat; returns the exit code."""
    session = ChatSession(
        runtime,
        options.params,
        system=options.system or None,
        max_tokens=options.max_tokens or None,
        draft_rows=options.draft_rows,
    )
    screen = Screen()
    if options.greet:
        drafter = f"drafter {runtime.drafter_name}" if runtime.drafter_name else f"drafter {runtime.draft_status}"
        screen.note(f"{runtime.name}, {drafter}, context {runtime.n_ctx} tokens. /help lists the commands.")
    return chat(session, screen)
