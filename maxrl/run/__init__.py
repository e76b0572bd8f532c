"""A run: setup, saving and resuming (directory.py), logs, evaluation; recipes/, trl/."""
