"""Names of the ways to find the documents of a plain text file."""

from bertaccum.options.fields import AUTO

LINE, EMPTY_LINE = "line", "empty-line"
DOCUMENTS = (AUTO, LINE, EMPTY_LINE)
