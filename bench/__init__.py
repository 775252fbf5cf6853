"""How fast it is: commands that print figures, never assertions."""
