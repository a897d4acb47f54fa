"""Files, cache, machine and progress; knows neither BERT nor TensorFlow."""
