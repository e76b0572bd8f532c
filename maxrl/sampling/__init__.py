"""Drawing rollouts: the sampler, its CUDA graphs and memory, and what it hands on."""
