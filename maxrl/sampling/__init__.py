"""The sampler with its KV cache, and the rollouts that it hands on."""
