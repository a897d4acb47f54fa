"""The commands, one file each: parse, call `bertaccum.api`, report."""
