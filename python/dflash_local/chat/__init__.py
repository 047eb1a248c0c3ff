"""The conversation at a terminal: template, session, screen, files."""
