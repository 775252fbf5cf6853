"""Figures for operators: metrics, rates, latencies, backlogs.

It reads the other rooms and changes nothing. Begin with `metrics.py`.
"""
