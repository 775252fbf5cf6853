"""The server: storage wired together, spoken to over gRPC, watched and operated."""
