"""The exception tree.

Error (RuntimeError)
+-- ModelLoadError        a file that cannot be read or is no usable model
+-- IncompatibleDrafter   drafter and target do not fit; ``field`` names what differs
+-- ContextOverflow       more tokens than the context holds
+-- GrammarError          a grammar that cannot be compiled
+-- Cancelled             stopped by ``cancel()``
+-- OutOfMemory
+-- DecodeError           the target or the drafter failed while computing
+-- Unsupported           this model, build or method cannot do what was asked

Wrong arguments raise ValueError or TypeError.
"""

from __future__ import annotations


class Error(RuntimeError):
    """Base of all failures of dflash_local. ``field`` names the key, tensor or argument at fault, or is empty."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ModelLoadError(Error):
    """A model file that is missing, unreadable or malformed."""


class IncompatibleDrafter(Error):
    """A drafter that does not fit its target, or of a family that cannot run here."""


class ContextOverflow(Error):
    """More tokens than the context holds."""


class GrammarError(Error):
    """A grammar that cannot be compiled."""


class Cancelled(Error):
    """Work stopped by ``cancel()``."""


class OutOfMemory(Error):
    """An allocation that failed."""


class DecodeError(Error):
    """The target or the drafter failed while computing."""


class Unsupported(Error):
    """This model, build or method cannot do what was asked."""
