"""The config.json of published models, as the hub has it, and how many parameters each has."""

import json
from pathlib import Path


def config(name: str) -> dict:
    return json.loads((Path(__file__).parent / "published" / f"{name}.json").read_text())


SMOLLM2 = config("SmolLM2-360M-Instruct")
QWEN3_4B = config("Qwen3-4B-Base")
MAZE = config("maze")
PUBLISHED = {
    "SmolLM2-360M-Instruct": (SMOLLM2, 361_821_120),
    "Qwen3-1.7B-Base": (config("Qwen3-1.7B-Base"), 1_720_574_976),
    "Qwen3-4B-Base": (QWEN3_4B, 4_022_468_096),
    "maze": (MAZE, 3_944_704),
}
