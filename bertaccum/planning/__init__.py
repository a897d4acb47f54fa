"""Planning: the memory and time of an update, and the best micro-batch size for the device."""
