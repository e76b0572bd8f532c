"""The figures: what they show is what the files hold, and it is said how it was smoothed.
`plots.save` is looked into."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from maxrl import plots
from maxrl.advantages import weight
from maxrl.errors import UsageError
from maxrl.io.arguments import named


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """drawn({"maxrl": [[.1, .2], ...]}) -> (figure, its legend's names) of runs with these
    rewards."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    kept, save = [], plots.save
    monkeypatch.setattr(plots, "save", lambda *given: (kept.append(given[0]), save(*given)))

    def run(seeds):
        words = []
        for name, runs in seeds.items():
            for i, rewards in enumerate(runs):
                words.append(f"{name}={name}{i}")
                Path(f"{name}{i}").mkdir(exist_ok=True)
                rows = [{"step": step, "reward": reward} for step, reward in enumerate(rewards)]
                Path(f"{name}{i}/metrics.jsonl").write_text(
                    "".join(json.dumps(row) + "\n" for row in rows)
                )
        plots.main([*words, "--panels", "reward", "--out", "out.png"])
        return kept[-1], legend(kept[-1])

    return run


def legend(fig) -> list[str]:
    return [text.get_text() for text in fig.legends[0].get_texts()]


def test_few_points_are_drawn_as_they_are(drawn):
    """Three steps were once drawn as a flat line at their mean."""
    fig, names = drawn({"maxrl": [[0.5, 0.3125, 0.4375]]})
    (line,) = fig.axes[0].lines
    assert line.get_ydata().tolist() == [0.5, 0.3125, 0.4375] and names == ["MaxRL"]
    assert fig.axes[0].get_ylabel() == "mean reward"


def test_smoothing(drawn):
    rewards = np.random.default_rng(0).random(40)
    fig, _ = drawn({"grpo": [rewards.tolist()]})
    raw, mean = fig.axes[0].lines
    assert (
        np.allclose(raw.get_ydata(), rewards) and raw.get_alpha() < 0.5 and mean.get_alpha() is None
    )
    assert np.isclose(mean.get_ydata()[20], rewards[16:25].mean())
    assert "mean of 9" in fig.legends[0].get_title().get_text()


def test_seeds_are_a_mean_and_a_band(drawn):
    fig, names = drawn({"rloo": [[0.0, 0.2], [0.4, 0.6, 0.8]]})
    assert fig.axes[0].lines[0].get_ydata() == pytest.approx([0.2, 0.4]) and names == ["RLOO"]
    assert len(fig.axes[0].collections) == 1, "a band"


def test_what_is_drawn_by_default(tmp_path):
    """The metrics with a meaning, and pass@k of the smallest and the largest k, if a run has them;
    names, captions and keys with dollars are no formulas."""
    pytest.importorskip("matplotlib")
    row = {"step": 0, "kl": 0.5, "reward": 1, "loss": 2} | {f"eval/pass@{k}": 1 for k in (16, 4, 1)}
    assert plots.default_panels(set(row)) == ["reward", "kl", "eval/pass@1", "eval/pass@16"]
    odd, row["$^$"] = r"$\nothing$", 1
    runs = {odd: [[row]], f"maxrl-{odd}": [[row]]}
    plots.training(runs, tmp_path / "out.png", f"cost_$5_^{{$6 {odd}", ["$^$", "reward"])


def test_names_and_colours():
    """Rows of one method share its colour, whatever follows the dash."""
    assert plots.called("maxrl-128") == "MaxRL, 128" and plots.called("mine") == "mine"
    assert plots.colour("maxrl-1024") == plots.colour("maxrl") != plots.colour("grpo")
    assert plots.colour("mine") is None


def test_what_exists_is_a_path(tmp_path, monkeypatch):
    """A directory may have "=" in its name."""
    monkeypatch.chdir(tmp_path)
    Path("lr=1e-4/run").mkdir(parents=True)
    assert named("lr=1e-4/run") == ("run", "lr=1e-4/run") and named("a=lr=1e-4/run") == (
        "a",
        "lr=1e-4/run",
    )
    assert named("a=b") == ("a", "b") and named("org/model") == ("model", "org/model")


def test_bad_input_is_one_sentence_and_code_2(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["plots", "nowhere", "--out", "curves.png"])
    with pytest.raises(SystemExit) as end:
        plots.script(plots.main)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and "nowhere is no run directory" in said
    with pytest.raises(UsageError, match="curves.xyz is no figure"):
        plots.main(["nowhere", "--out", "curves.xyz"])
    with pytest.raises(UsageError, match="reward is in none"):
        plots.training({"begun": [[]]}, Path("curves.png"))
    Path("begun").mkdir()
    Path("begun/metrics.jsonl").touch()
    with pytest.raises(UsageError, match="begun .* first step"):
        plots.main(["begun", "--out", "curves.png"])


@pytest.mark.parametrize("kind", ["png", "pdf", "SVG"])
def test_only_a_figure_of_ours_is_replaced(tmp_path, kind):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"out.{kind}"
    draw = ["--weights", "maxrl", "--out", str(file)]
    plots.main(draw)
    file.write_bytes(file.read_bytes() + b" of ours")
    plots.main(draw)
    assert not file.read_bytes().endswith(b" of ours")
    file.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        plots.main(draw)
    assert file.read_bytes() == b"mine" and list(tmp_path.iterdir()) == [file]


def test_weights(tmp_path, monkeypatch):
    """Lines are exact weights of N rollouts, dashed ones limits, of which the user's has none."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def double(rewards):\n    return 2 * rewards\n")
    kept, save = [], plots.save
    monkeypatch.setattr(plots, "save", lambda *given: (kept.extend(given), save(*given)))
    names = ["maxrl", "grpo", f"{tmp_path}/mine.py:double"]
    plots.main(["--weights", ",".join(names), "--rollouts", "8", "--out", "w.png"])
    fig = kept[0]
    assert legend(fig) == ["MaxRL", "GRPO", "mine.py:double"]
    assert [ax.get_xscale() for ax in fig.axes] == ["log", "linear"]
    assert {ax.get_yscale() for ax in fig.axes} == {"log"} and Path("w.png").stat().st_size
    for ax in fig.axes:
        solid = [line for line in ax.lines if line.get_linestyle() == "-"]
        dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
        assert len(solid) == len({line.get_color() for line in solid}) == 3 and len(dashed) == 2
        for line, name in zip(solid, names):
            p, w = map(torch.tensor, line.get_data())
            torch.testing.assert_close(w, weight(name, p, rollouts=8))
            assert p.min() < 1e-3 and p.max() > 0.999
        for line, name in zip(dashed, names):
            p, w = map(torch.tensor, line.get_data())
            torch.testing.assert_close(w, weight(name, p))


@pytest.mark.parametrize(
    "words, said",
    [
        ("", "either runs or estimators"),
        ("--weights maxlr", "--weights maxlr: no estimator is called 'maxlr'"),
        ("--weights maxrl_order", "--weights maxrl_order: maxrl_order needs order="),
        ("--weights rloo --rollouts 1", "at least 2 rollouts"),
        ("--weights maxrl --rollouts -2", "--rollouts -2"),
        ("--weights maxrl --rollouts 1000000", "--rollouts 1000000"),
    ],
)
def test_weights_that_cannot_be_drawn(words, said, tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match=said):
        plots.main([*words.split(), "--out", str(tmp_path / "w.png")])
    assert not list(tmp_path.iterdir())
