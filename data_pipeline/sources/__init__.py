"""Read files and URIs into clean documents with stable ids."""
