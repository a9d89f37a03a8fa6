"""Train, load and save vocabularies of every kind."""
