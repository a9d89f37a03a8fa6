"""The data mill: raw text in, pre-masked shards and their loader out. Imports neither torch nor pretrain."""
