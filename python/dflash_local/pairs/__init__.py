"""Which drafter fits which target: known pairs, look-up, checks."""
