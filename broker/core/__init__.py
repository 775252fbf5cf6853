"""The broker without a protocol: plain values in, plain values out.

The adapters (gRPC messaging, bulk, both admin services, metrics) import this package; it imports
none of them, and no class of protobuf. Begin to read at `kinds`, the table of message kinds.
"""
