"""The commands. A file contains one command, or two that are closely related."""
