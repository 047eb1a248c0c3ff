"""DFlash drafting for GGUF models: the same text, sooner."""
