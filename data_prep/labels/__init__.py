"""The labels of a source: their format in cells, their kind of task, and whether they suit it."""
