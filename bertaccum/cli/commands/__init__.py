"""The commands. A file contains one command, or several that are closely related."""
