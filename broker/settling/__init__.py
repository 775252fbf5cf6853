"""The end of a delivery: acknowledged, made visible again, renewed, or a dead letter.

It must not know how messages are taken, nor any protocol. Begin with `settle.py`.
"""
