"""MaxRLTrainer: train.py under the names of TRL."""
