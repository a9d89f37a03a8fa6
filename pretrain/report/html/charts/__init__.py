"""Draw a run's figures as SVG pictures, each with its numbers."""
