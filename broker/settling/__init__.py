"""What becomes of a delivered message: acknowledged, made visible again, renewed, or dead.

It must not know how messages are taken, nor any protocol. Begin with `settle.py`.
"""
