"""For each topic and queue, where its messages lie in the log: 20 bytes each."""
