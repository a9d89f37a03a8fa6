"""Read and write files, object stores and columns; nothing here knows what they hold."""
