"""Measures plain decoding against drafting on suites of prompts, and other servers beside them."""
