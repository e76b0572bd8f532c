"""A progress bar for people, metrics.jsonl for programs."""

import json
import math
import os
from pathlib import Path

from tqdm import tqdm

BAR = {  # metric: what the bar calls it
    "reward": "reward",
    "frac_reward_zero_mean": "unsolved",
    "loss": "loss",
    "tokens_per_second": "tok/s",
    "images_per_second": "img/s",
    "eval/pass@1": "pass@1",
}


class Logger:
    """Writes on the main rank only; the others hold one that does nothing."""

    def __init__(self, run, first_step: int, steps: int, name: str, main: bool):
        """run: the run directory. metrics.jsonl is cut back to the steps before first_step."""
        self.main = main
        if not main:
            return
        self.path, self.shown = Path(run) / "metrics.jsonl", {}
        kept = []
        if self.path.exists():
            kept = [line for line in self.path.read_text().splitlines(keepends=True)
                    if line.endswith("\n") and json.loads(line)["step"] < first_step]
        whole = self.path.with_suffix(".jsonl.incomplete")
        whole.write_text("".join(kept))
        os.replace(whole, self.path)
        self.file = self.path.open("a", buffering=1)  # a line is on disk when the step is over
        self.bar = tqdm(total=steps, initial=first_step, desc=name, dynamic_ncols=True, mininterval=0.5)

    def log(self, step: int, metrics: dict[str, float]):
        if not self.main:
            return
        known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        self.file.write(json.dumps({"step": step, **known}) + "\n")
        self.shown |= {BAR[k]: f"{v:.3g}" if v < 1000 else f"{v:,.0f}" for k, v in metrics.items() if k in BAR}
        self.bar.set_postfix(self.shown, refresh=False)
        self.bar.update(1)

    def say(self, text: str):
        if self.main:
            self.bar.write(text)

    def close(self):
        if self.main:
            self.bar.close()
            self.file.close()
