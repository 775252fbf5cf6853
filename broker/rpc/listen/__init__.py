"""From an address to a byte stream: listening sockets, PROXY protocol, TLS or plaintext."""
