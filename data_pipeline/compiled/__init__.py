"""Compile loops over arrays, and draw the random numbers that they use."""
