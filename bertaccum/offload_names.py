"""Names of what can be offloaded. This module imports nothing."""

OFFLOAD_NONE, OFFLOAD_MOMENTS, OFFLOAD_ALL = "none", "moments", "all"
# Each keeps less on the device than the one before.
OFFLOAD = (OFFLOAD_NONE, OFFLOAD_MOMENTS, OFFLOAD_ALL)
