"""Where the `dflash-local` command starts: Ctrl-C while modules are imported ends the process without a traceback."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """Imports the commands and runs the one that was asked for."""
    from dflash_local.cli.main import main as run

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
