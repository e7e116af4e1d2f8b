"""How far estimates are from what real cards showed: measured runs, repeated by an engine as a user would run them."""
