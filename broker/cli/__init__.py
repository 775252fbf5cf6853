"""The commands: arguments are parsed and results printed here, and nowhere else."""
