"""DFlash drafting for GGUF models: the same text, sooner."""

from dflash_local import _load_order

_load_order.install()
