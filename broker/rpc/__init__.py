"""The transport: calls come in over gRPC, handlers run on trio.

It must not know what a call is about. Begin with `exchange.py`, the life of a call, and
`interceptor.py`, what is true of every call; then `http2/server_connection.py`.
"""
