"""Output of the command line: results on stdout, everything else on stderr.

rich is imported only when a command shows its output, not at start-up.
"""
