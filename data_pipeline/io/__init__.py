"""Read and write files, object stores and columns, independent of their contents."""
