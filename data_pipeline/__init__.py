"""Turn raw text into pre-masked shards, and load them. Imports neither torch nor pretrain."""
