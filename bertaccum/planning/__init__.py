"""What an update costs in memory and time, and how its window is cut to fit the device."""
