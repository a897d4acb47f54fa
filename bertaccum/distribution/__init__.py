"""Training on several devices and in several processes, with tf.distribute."""
