"""Draw a run's figures as SVG pictures, each with the numbers behind it."""
