"""From rollouts and advantages to updates."""
