"""The wire formats and the modules that `generate` makes of them."""
