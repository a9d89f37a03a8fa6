"""Turn a recipe into Slurm jobs."""
