"""The storage wired together: one store of log, consume queues and index, behind threads only.

It must not know an event loop, a network or consumers. Begin with `message_store.py`.
"""
