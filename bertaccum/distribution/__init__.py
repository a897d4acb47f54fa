"""Several devices and several processes as one run, on tf.distribute."""
