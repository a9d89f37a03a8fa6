"""Find settings that contradict each other; read find.py first."""
