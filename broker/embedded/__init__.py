"""A broker inside another process, with virtual time, and the pytest plugin that offers one.

It must not be imported by anything but the command line. Begin with `broker.py`.
"""
