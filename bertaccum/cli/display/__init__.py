"""What the command line shows: results on stdout, everything else on stderr.

rich is imported when something is shown, not when the program starts.
"""
