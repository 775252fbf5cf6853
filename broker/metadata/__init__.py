"""What the broker knows beside the log: topics, groups, and how far each group has come."""
