"""Which messages a consumer wants: by tag and by SQL expression.

It must not know an event loop, a protocol or the store. Begin with `message_filter.py`.
"""
