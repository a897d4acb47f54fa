"""Train several runs in one process: `several_runs.py '[{option: value}, ...]'`."""

import json
import sys

import bertaccum

for options in json.loads(sys.argv[1]):
    bertaccum.train(**options)
