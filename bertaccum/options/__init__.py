"""What a user can set: options of the commands, and the names of their values."""
