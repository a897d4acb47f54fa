"""Runs on several devices and several processes, with tf.distribute."""
