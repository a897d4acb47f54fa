"""Sources of data sets: Yelp, GLUE, tensorflow-datasets, own files, the sample."""
