"""Plan a recipe as Slurm jobs and submit them."""
