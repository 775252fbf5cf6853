"""Finding messages by key and time: the hash index on disk."""
