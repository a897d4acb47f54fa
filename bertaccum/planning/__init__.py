"""Planning: the memory and time of an update, and the micro-batch size that suits the device."""
