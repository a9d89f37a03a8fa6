"""Predict what no head of transformers does: tags by a CRF or from frozen features, and trees."""
