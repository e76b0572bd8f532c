"""What keeps a run alive: setup, its directory, logs, evaluation; recipes/ and trl/."""
