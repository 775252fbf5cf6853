"""The operators' services: topics, groups, progress and single messages of a running broker.

The modules here are our own service, those in `v2/` the Admin of the protocol. It must not be known
by any room but the server. Begin with `methods.py`.
"""
