"""The commands: arguments are parsed and results printed here, and nowhere else.

No room may import it. Begin with `main.py` (commitbus) and `mqadmin.py`.
"""
