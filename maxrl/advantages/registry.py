"""The registry of estimators, and the checks of what they are given."""

import functools
import inspect
from collections.abc import Hashable

import torch
from torch import Tensor

from maxrl.advantages.thresholds import over_thresholds
from maxrl.system.arguments import near
from maxrl.system.errors import FAULTS


class _Registry(dict):
    def __missing__(self, name):
        hint = near(str(name), self, f"use {', '.join(self)}")
        raise KeyError(f"no estimator is called {name!r}; {hint}")


# The names in this module are taken. An estimator of the user's may be registered again, as when a
# notebook's cell is run twice.
BUILT_IN = "maxrl.advantages.formulas"
ADVANTAGES = _Registry()  # name -> function(rewards (P, N), **options) -> advantages (P, N)


def estimator(
    takes: str,
    limit=None,
    group: bool = False,
    rounds: bool = False,
    count: str = "",
    thresholds: str = "",
    registry=ADVANTAGES,
):
    """Register a formula in ADVANTAGES, behind the checks at the end of this file.

    takes     rewards that it is made for: "any" finite value or "binary"
    limit     its weight w(p) for many rollouts; None if it is not known here, False if it has no
              weight because it depends on more than r_i and K
    group     whether it compares a rollout with others, so that N = 1 is refused
    rounds    whether its weight from N rollouts is w_N for every N and a group without a success
              gets exactly 0, so that prompts may be sampled in rounds (maxrl/learning/rounds.py)
    count     its option that is an int from 1 to N; with it, rewards must be binary
    thresholds  for a binary estimator, the rewards that thresholds=True allows (thresholds.py):
              "any" if it gives 0 to a group in which all succeed, else "nonnegative"; "" for none
    registry  to register in

    The formula gets known options and finite rewards (P, N), in float64 if they were given so.
    """
    if {takes, thresholds} - {"any", "binary", "nonnegative", ""}:
        raise ValueError(f"@estimator got takes={takes!r} and thresholds={thresholds!r}")

    def register(formula):
        called = formula.__name__
        _, *options = inspect.signature(formula).parameters.values()
        named = [option for option in options if option.kind is not option.VAR_KEYWORD]
        known = {option.name: option.default is option.empty for option in named}
        if thresholds:
            known["thresholds"] = False

        @functools.wraps(formula)
        def checked(rewards: Tensor, **options) -> Tensor:
            missing = options.pop("allow_missing", False)
            rewards = check_shape(called, rewards, group)
            check_options(called, known, options, count, rewards.shape[1])
            if missing:
                return among_judged(checked, rewards, options)
            if options.pop("thresholds", False):
                check_values(called, rewards, thresholds)
                return over_thresholds(functools.partial(formula, **options), rewards)
            domain = "binary" if options.get(count) else takes
            check_values(called, rewards, domain, bool(thresholds))
            return formula(rewards, **options)

        checked.known = known
        checked.takes = takes
        checked.limit = limit
        checked.rounds = rounds
        checked.count = count
        if called in registry and registry[called].__module__ == BUILT_IN != checked.__module__:
            raise ValueError(f"an estimator is called {called} already: choose another name")
        registry[called] = checked
        return checked

    return register


def among_judged(rule, rewards: Tensor, options: dict) -> Tensor:
    """Advantages (P, N) of rewards that are NaN where there is no rollout or no verdict.

    A group with n rewards gets the advantages of n rollouts, multiplied by N / n so that their mean
    over N equals the mean of the unscaled ones over n. Rollouts without a reward get 0.
    """
    N = rewards.shape[1]
    judged = ~rewards.isnan()  # (P, N)
    counts = judged.sum(dim=1)  # (P,)  n of each group
    advantages = torch.zeros_like(rewards)
    for n in counts[counts > 0].unique().tolist():
        chosen = judged & (counts == n)[:, None]  # (P, N)
        some = of_rollouts(options, rewards, chosen, (-1, n))
        values = rule(rewards[chosen].view(-1, n), **some)  # (groups of n, n)
        advantages[chosen] = (values * (N / n)).flatten()
    return advantages


def of_rollouts(options: dict, rewards: Tensor, chosen, shape) -> dict:
    """Return the options; a tensor with one value per reward is cut to `chosen` and reshaped."""
    some = dict(options)
    for name, value in options.items():
        if isinstance(value, Tensor) and value.shape == rewards.shape:
            some[name] = value[chosen].view(shape)
    return some


def by_group(rewards, group_ids, rule, **options) -> Tensor:
    """Return advantages (B,) of rewards (B,), for trainers that do not keep rewards as (P, N).

    rewards    (B,), rollouts of any prompts in any order; NaN (None in a list) for one without a
               verdict
    group_ids  (B,), a tensor, array or list: rollouts of one prompt have one number or text
    rule       a name in ADVANTAGES, or what weight() takes
    options    those of the estimator; a tensor (B,) where it takes (P, N)

    Groups may differ in size. A group with n verdicts gets the advantages of n rollouts, and a
    rollout without one gets 0 and does not count. Raises ValueError for other shapes or ids, or if
    all ids differ and the estimator counts successes; and what the estimator raises, which may
    refuse a group that is too small for it.
    """
    rule = find(rule)
    if isinstance(rewards, list):
        rewards = [torch.nan if reward is None else reward for reward in rewards]
    rewards = torch.as_tensor(rewards).detach()
    ids = group_ids.tolist() if hasattr(group_ids, "tolist") else group_ids
    ids = [i.item() if hasattr(i, "item") else i for i in ids]
    for i in ids:
        # What is missing would be a group of its own.
        if not isinstance(i, Hashable) or str(i) in ("None", "nan", "<NA>", "NaT"):
            raise ValueError(f"by_group takes numbers or texts as group_ids, not {i!r:.60}")
    if rewards.shape != (len(ids),):
        raise ValueError(
            f"by_group takes rewards (B,) and group_ids (B,), not {tuple(rewards.shape)} and "
            f"({len(ids)},); sum the rewards of a response's tokens first"
        )
    # tailrl takes any reward, and has an order as the other MaxRL forms.
    in_groups = rule.takes != "any" or rule is ADVANTAGES["tailrl"]
    if len(set(ids)) == len(ids) > 1 and in_groups and not options.get(rule.count):
        raise ValueError(
            f"by_group got {len(ids)} different group_ids for {len(ids)} rollouts, which makes "
            f"{rule.__name__} reinforce: give all rollouts of a prompt one id, or use reinforce"
        )
    groups: dict = {}
    for i in (~rewards.isnan()).nonzero().flatten().tolist():
        groups.setdefault(ids[i], []).append(i)
    advantages = torch.zeros_like(rewards, dtype=torch.promote_types(rewards.dtype, torch.float32))
    for rows in groups.values():
        some = of_rollouts(options, rewards, rows, (1, -1))
        advantages[rows] = rule(rewards[rows][None], **some)[0]  # (n,)
    return advantages


class RewardError(ValueError):
    """A reward that the estimator does not take."""


def find(rule):
    """Return the estimator for a name in ADVANTAGES, a function of rewards, or "FILE.py:NAME"."""
    if callable(rule):
        return rule if hasattr(rule, "known") else own(getattr(rule, "__name__", "this rule"), rule)
    if rule in ADVANTAGES or ":" not in str(rule):
        return ADVANTAGES[rule]
    from maxrl.system.user_code import import_object

    return own(rule, import_object(rule, "--estimator"))


def own(name: str, formula):
    """Return a user's function f(rewards (P, N), **options) as an estimator for finite rewards.

    A function under an `@estimator` line keeps its checks. RewardError if it fails or does not
    return finite advantages (P, N).
    """

    @functools.wraps(formula)
    def checked(rewards: Tensor, **options) -> Tensor:
        try:
            # A copy: the function may write into it, and the error below shows the rewards.
            advantages = formula(rewards.clone(), **options)
        except RewardError:
            raise
        except FAULTS as error:
            raise RewardError(
                f"the estimator {name} raised {type(error).__name__}: {error}"
            ) from None
        wanted = f"the estimator {name} must return finite advantages of the rewards' shape (P, N)"
        shape = tuple(getattr(advantages, "shape", ()))
        if not isinstance(advantages, Tensor) or shape != rewards.shape:
            raise RewardError(f"{wanted}, not {type(advantages).__name__} {shape}")
        bad = (~advantages.isfinite()).any(dim=1)  # (P,)
        if bad.any():
            group = f"{advantages[bad][0].tolist()} for the rewards {rewards[bad][0].tolist()}"
            raise RewardError(f"{wanted}, not {group}")
        return advantages.to(rewards)

    checked.__name__ = name
    return checked if hasattr(formula, "known") else estimator(takes="any", registry={})(checked)


def check_shape(name: str, rewards, group: bool) -> Tensor:
    """Return a copy of the rewards (P, N) without gradient, in float32 or float64.

    ValueError for anything else, and for N = 1 if `group`.
    """
    shape = tuple(getattr(rewards, "shape", ()))
    if not isinstance(rewards, Tensor) or len(shape) != 2 or 0 in shape:
        raise ValueError(
            f"{name} takes rewards as a tensor (P, N), one row of N >= 1 rollouts per prompt, not "
            f"{type(rewards).__name__} {shape}; use torch.tensor(rewards).view(P, N)"
        )
    if group and rewards.shape[1] == 1:
        raise ValueError(f"{name} needs at least 2 rollouts per prompt, got N = 1; use reinforce")
    return rewards.detach().to(torch.promote_types(rewards.dtype, torch.float32), copy=True)


def check_options(name: str, known: dict, options: dict, count: str, rollouts=None) -> None:
    """TypeError or ValueError for an unknown or missing option.

    The option `count` must be an int from 1 to `rollouts`, N if that is known.
    """
    for key, value in options.items():
        if key not in known:
            takers = [other for other, rule in ADVANTAGES.items() if key in rule.known]
            hint = f"{', '.join(takers)} take it" if takers else "leave it out"
            hint = near(key, known, hint)
            raise TypeError(f"{name} takes no option {key!r} (got {value!r}); {hint}")
        if key == "thresholds" and type(value) is not bool:
            raise TypeError(f"{name} got thresholds={value!r}; use True or False")
        counted = key == count and value is not None
        if counted and (type(value) is not int or not 1 <= value <= (rollouts or value)):
            raise ValueError(
                f"{name} got {key}={value} but needs an int, 1 <= {key} <= N = "
                f"{rollouts or 'any'}; choose {key} from this range"
            )
    for key, required in known.items():
        if required and options.get(key) is None:
            raise TypeError(
                f"{name} needs {key}=, in train.py --estimator.{key}; maxrl needs no option"
            )


def check_sizes(rule, sizes: tuple, options: dict) -> None:
    """ValueError unless an estimator takes rounds of these sizes; all take a single round."""
    name = rule.__name__
    if len(sizes) == 1:
        return
    if not rule.rounds:
        exact = [key for key, other in ADVANTAGES.items() if other.rounds]
        raise ValueError(
            f"{name} does not have weight w_N from N rollouts for every N, so the order of rounds "
            f"{sizes} would not be their sum; use one number, or {' or '.join(exact)}"
        )
    given = [key for key in ("order", "thresholds") if options.get(key)]
    if given:
        raise ValueError(
            f"the order of {name} in rounds {sizes} is their sum; leave out {' and '.join(given)}"
        )


def check_values(name: str, rewards: Tensor, domain: str, lifted: bool = False) -> None:
    """RewardError for a reward outside the domain.

    domain  "any" finite value, "nonnegative" or "binary"
    lifted  whether thresholds=True would take other rewards
    """
    allowed = {"binary": "{0, 1}", "nonnegative": "[0, inf)"}.get(domain, "finite numbers")
    good = rewards.isfinite()
    if domain == "nonnegative":
        good &= rewards >= 0
    elif domain == "binary":
        good = (rewards == 0) | (rewards == 1)
    if not good.all():
        # Its text has all digits of its dtype.
        bad = rewards[~good][0].cpu().numpy()
        hint = (
            f"to go on with {name}, give all reward functions but one the weight 0, or write one "
            "that returns 1 where all are satisfied; in a single round rloo or grpo take any "
            "finite reward"
        )
        if lifted:
            hint += f", and {name} its thresholds, with thresholds=True (--thresholds true)"
        raise RewardError(f"{name} got a reward of {bad!s} but takes {allowed}; {hint}")
