"""The operator's service: topics, groups, progress and single messages of a running broker."""
