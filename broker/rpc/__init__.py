"""The transport: calls come in over gRPC, handlers run on trio; nothing here knows messaging."""
