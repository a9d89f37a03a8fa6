"""Define the encoder and its heads: hidden states, logits and loss sums of a MicroBatch, on a single device.

Read in this order: embeddings, attention/ (dropout), layers, encoder, heads (projection/), initialize.
"""
