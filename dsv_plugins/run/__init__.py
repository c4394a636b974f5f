"""The run folder: every file name in it, and how each file is written and read."""
