"""The one append-only log that every topic shares."""
