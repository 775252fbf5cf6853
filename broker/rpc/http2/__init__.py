"""gRPC over HTTP/2 on trio: the protocol's framing is ours, HTTP/2's is a library's."""
