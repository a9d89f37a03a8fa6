"""Split documents into sentences, and tokenize sentences into ids."""
