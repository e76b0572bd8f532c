"""The figures: what they show is what the files hold, and it is said how it was smoothed.
`plots.save` is looked into."""

from pathlib import Path

import numpy as np
import pytest
import torch

from maxrl.advantages import weight
from maxrl.analysis import plots
from maxrl.system.arguments import name_and_path
from maxrl.system.errors import UsageError
from tests.helpers.tables import put

pytest.importorskip("matplotlib")


@pytest.fixture
def figure(monkeypatch, in_a_directory_of_its_own):
    """figure(words) -> what maxrl.analysis.plots draws for them, and the names in its legend."""
    kept = []
    save = plots.save

    def keep(fig, *given):
        kept.append(fig)
        return save(fig, *given)

    monkeypatch.setattr(plots, "save", keep)

    def draw(*words):
        plots.main([*words, "--out", "out.png"])
        fig = kept.pop()
        return fig, [text.get_text() for text in fig.legends[0].get_texts()]

    return draw


@pytest.fixture
def drawn(figure):
    """drawn(name, rewards...) -> the same of runs of this name with these rewards."""

    def draw(name, *seeds):
        for i, rewards in enumerate(seeds):
            Path(f"{i}").mkdir()
            rows = [{"step": step, "reward": reward} for step, reward in enumerate(rewards)]
            put(Path(f"{i}/metrics.jsonl"), rows)
        words = [f"{name}={i}" for i in range(len(seeds))]
        return figure(*words, "--panels", "reward")

    return draw


def test_few_points_are_drawn_as_they_are(drawn):
    """Three steps were once drawn as a flat line at their mean."""
    fig, names = drawn("maxrl", [0.5, 0.3125, 0.4375])
    (line,) = fig.axes[0].lines
    assert line.get_ydata().tolist() == [0.5, 0.3125, 0.4375]
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert names == ["MaxRL"]
    assert fig.axes[0].get_ylabel() == "mean reward"


def test_smoothing(drawn):
    rewards = np.random.default_rng(0).random(40)
    fig, _ = drawn("grpo", rewards.tolist())
    raw, mean = fig.axes[0].lines
    assert raw.get_ydata() == pytest.approx(rewards)
    assert mean.get_ydata()[20] == pytest.approx(rewards[16:25].mean())
    assert mean.get_ydata()[0] == pytest.approx(rewards[:5].mean())
    assert "mean of 9" in fig.legends[0].get_title().get_text()


def test_seeds_are_a_mean_and_a_band(drawn):
    fig, names = drawn("rloo", [0.0, 0.2], [0.4, 0.6, 0.8])
    assert fig.axes[0].lines[0].get_ydata() == pytest.approx([0.2, 0.4])
    assert len(fig.axes[0].collections) == 1, "a band"
    assert names == ["RLOO"]


def test_what_is_drawn_by_default(tmp_path):
    """The metrics with a meaning, and pass@k of the smallest and the largest k, if a run has them;
    names, captions and keys with dollars are no formulas."""
    row = {"step": 0, "kl": 0.5, "reward": 1, "loss": 2} | {f"eval/pass@{k}": 1 for k in (16, 4, 1)}
    assert plots.default_panels(set(row)) == ["reward", "kl", "eval/pass@1", "eval/pass@16"]
    odd = r"$\nothing$"
    row["$^$"] = 1
    runs = {odd: [[row]], f"maxrl-{odd}": [[row]]}
    plots.training(runs, tmp_path / "out.png", f"cost_$5_^{{$6 {odd}", ["$^$", "reward"])


def test_what_exists_is_a_path(in_a_directory_of_its_own):
    """A directory may have "=" in its name."""
    Path("lr=1e-4/run").mkdir(parents=True)
    assert name_and_path("lr=1e-4/run") == ("run", "lr=1e-4/run")
    assert name_and_path("a=lr=1e-4/run") == ("a", "lr=1e-4/run")
    assert name_and_path("a=b") == ("a", "b")
    assert name_and_path("org/model") == ("model", "org/model")


def test_runs_without_a_step(in_a_directory_of_its_own):
    Path("begun").mkdir()
    Path("begun/metrics.jsonl").touch()
    with pytest.raises(UsageError, match="begun .* first step"):
        plots.main(["begun", "--out", "curves.png"])
    with pytest.raises(UsageError, match="reward is in none"):
        plots.training({"begun": [[]]}, Path("curves.png"))


@pytest.mark.parametrize("kind", ["png", "pdf", "SVG"])
def test_only_a_figure_of_ours_is_replaced(tmp_path, kind):
    file = tmp_path / f"out.{kind}"

    def draw():
        curve = {"k": [1, 2], "mean": [0.1, 0.2], "se": [0, None]}
        plots.coverage({"pass@k": {"maxrl-$x^$": curve}}, file, "")

    draw()
    file.write_bytes(file.read_bytes() + b" of ours")
    plots.require(file)
    draw()
    assert not file.read_bytes().endswith(b" of ours")
    file.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        plots.require(file)
    assert list(tmp_path.iterdir()) == [file]


def test_curves_of_one_method_have_other_dashes():
    """As those of `make images` and of a grid of rates; another method begins again."""
    names = ["maxrl-1024", "grpo", "maxrl-128", "lr=1-maxrl", "maxrl-16", "maxrl-4", "rloo"]
    found = plots.styles(names)
    # The studies have colours of their own for some of these names.
    drawn = {(style["color"], style["linestyle"]) for style in found.values()}
    assert len(drawn) == len(names)
    assert found["grpo"]["linestyle"] == found["rloo"]["linestyle"] == "-"


def test_a_guess_is_dotted_and_no_other_is_as_red_as_maxrl():
    found = plots.styles(["guess", "maxrl", *"abcdefghijkl"])
    assert [name for name, style in found.items() if style["linestyle"] == ":"] == ["guess"]
    assert "C3" not in {style["color"] for style in found.values()}


def test_weights(figure):
    """Lines are exact weights of N rollouts, dashed ones limits, of which the user's has none."""
    Path("mine.py").write_text("def double(rewards):\n    return 2 * rewards\n")
    names = ["maxrl", "grpo", f"{Path.cwd()}/mine.py:double"]
    fig, shown = figure("--weights", ",".join(names), "--rollouts", "8")
    assert shown == ["MaxRL", "GRPO", "mine.py:double"]
    for ax in fig.axes:
        solid = [line for line in ax.lines if line.get_linestyle() == "-"]
        dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
        for lines, rollouts, count in ((solid, 8, 3), (dashed, None, 2)):
            assert len(lines) == count
            for line, name in zip(lines, names):
                p, w = map(torch.tensor, line.get_data())
                torch.testing.assert_close(w, weight(name, p, rollouts=rollouts))
                assert p.min() < 1e-3
                assert p.max() > 0.999
