"""Fast forms of the steps. Each is tested against the reference beside it."""
