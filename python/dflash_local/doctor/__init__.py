"""What this machine and this pair can do: measured, worked out, and said in plain words."""
