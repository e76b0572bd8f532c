"""A recipe's options, the policy, losses, micro-batches, rounds and updates."""
