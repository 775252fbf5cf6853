"""Which messages a consumer wants: by tag and by SQL expression, without I/O or protocol."""
