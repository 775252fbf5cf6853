"""Other brokers, driven as ours is, to compare with."""
