"""Output of the command line: results on stdout, everything else on stderr.

rich is imported at the first output, not at start-up.
"""
