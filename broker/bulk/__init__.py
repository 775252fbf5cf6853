"""The bulk service: many messages at a time, in and out. Its protocol is `bulk_v1.proto`.

It must not know the other services; what it shares with its client is in `wire`. Begin with
`append.py` and `fetch.py`.
"""
