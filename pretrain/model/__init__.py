"""Define the encoder and its heads: hidden states, logits and loss sums of a MicroBatch, on a single device.

Read in this order: batch, encoder (with ops, attention_tiles and attention), heads (with vocabulary_losses),
initialize. xlnet has an encoder of its own.
"""
