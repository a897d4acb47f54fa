"""The entry point of `python -m bertaccum`."""

from bertaccum.cli.entry import main

main()
