"""Options of the commands, and the names of their values."""
