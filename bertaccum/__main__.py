"""The entry point of `python -m bertaccum`."""

from bertaccum.cli.program import main

main()
