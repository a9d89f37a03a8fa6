"""Read and write the files of a run folder, and put their figures into words."""
