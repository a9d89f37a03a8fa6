"""The encoder and its heads: a MicroBatch in; hidden states, logits and loss sums out. No rank in sight.

Read in this order: embeddings, attention (tiles, dropout), layers, encoder, heads (cross_entropy), initialize.
"""
