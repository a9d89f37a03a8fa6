"""Check this machine: report what is missing, and what to do about it."""
