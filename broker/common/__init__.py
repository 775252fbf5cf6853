"""Parts that every room may use: errors, addresses, texts for people, workers, the trio thread.

It must not know any other room of the broker. Begin with `errors.py`, the hierarchy of refusals.
"""
