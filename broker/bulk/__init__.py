"""The bulk service: many messages at a time, in and out. Its protocol is `bulk_v1.proto`."""
