"""The format of a run folder: its paths, how it is written, and how it is read."""
