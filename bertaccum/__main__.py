"""`python -m bertaccum`."""

from bertaccum.cli import main

main()
