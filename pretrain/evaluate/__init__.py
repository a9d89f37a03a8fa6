"""Evaluate models: what they have learnt, beside what needs no learning."""
