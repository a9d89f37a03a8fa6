"""Define every setting of a run, and the phases it consists of."""
