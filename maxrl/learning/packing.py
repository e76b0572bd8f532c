"""Cutting rows of different lengths into micro-batches with little padding.

A micro-batch is a rectangle: several groups with the same number of rows each, padded to the
longest row. The prompts of its groups are padded to the longest prompt and run once. Groups may
have different numbers of rows to run, and the cuts follow these numbers.

Rows of similar length share a micro-batch: the rows of a group are sorted by length, and groups of
similar cost are neighbours. A rectangle is cut at the place that saves most, as long as it exceeds
the budget or the cut saves more than the fixed cost of a micro-batch, budget / LAUNCH.

Letters: G groups, M rows of each, N rollouts of a prompt, L tokens, Lp of the longest prompt
without its last token.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maxrl.sampling.prompts import split
from maxrl.sampling.rollouts import Rollouts

LAUNCH = 32  # a micro-batch has a fixed cost of budget / LAUNCH tokens


@dataclass
class MicroBatch:
    """What one forward runs: M rows of similar length for each of G groups.

    All but prefix_lengths are on the device.

    The prompt without its last token is the group's prefix, which is encoded once for all rows.
    The last token is the first input of every row, so that input t predicts target t.
    """

    row_ids: Tensor  # (G, M): which of the rank's P_local N rollouts each row is
    prefix: Tensor  # (G, Lp), right-padded
    prefix_lengths: Tensor  # (G,), on the host
    inputs: Tensor  # (G, M, L)
    targets: Tensor  # (G, M, L)
    mask: Tensor  # (G, M, L) bool: which targets are tokens of rows that are run
    token_index: Tensor  # (tokens,): indices of the mask's true elements, flattened

    def select(self, values: Tensor | None) -> Any:
        """Return the part of `values` that belongs to the rows: (G, M) or (G, M, L); None for None.

        values  (P_local, N) or (P_local, N, at least L), on the device
        """
        if values is None:
            return None
        part = values.flatten(0, 1)[self.row_ids]
        if part.dim() == 2:
            return part
        L = self.targets.shape[-1]
        return part[..., :L]

    def spread(self, values: Tensor | None) -> Tensor | None:
        """Return the tokens' values (tokens,) as (G, M, L), with 0 elsewhere; None for None."""
        if values is None:
            return None
        zeros = values.new_zeros(self.mask.numel())
        spread = zeros.index_copy(0, self.token_index, values).view(self.mask.shape)
        # fully_shard warns of views, because nothing may be written into them.
        return spread.clone()


def rectangles(
    prompts: np.ndarray, lengths: np.ndarray, budget: int
) -> Iterator[tuple[np.ndarray, slice]]:
    """Cut G groups of M rows each into rectangles of some groups and some columns.

    prompts  (G,), an array: the number of tokens of each prompt
    lengths  (G, M), an array; each group from its longest row to its shortest. A row of length 0
             is not run: it appears in a rectangle only as padding
    budget   the most tokens of a rectangle, padding included; a single row may exceed it

    Yields pairs of the group ids, (G',), and the slice of columns.
    """
    waiting = [(np.arange(len(lengths)), slice(0, lengths.shape[1]))]
    while waiting:
        group_ids, columns = waiting.pop()
        # Drop groups and columns without a row to run.
        group_ids = group_ids[lengths[group_ids, columns.start] > 0]
        if len(group_ids) == 0:
            continue
        counts = (lengths[group_ids, columns] > 0).sum(1)  # (G',)
        columns = slice(columns.start, columns.start + int(counts.max()))
        # Groups of similar cost stay together.
        longest = lengths[group_ids, columns.start]
        order = np.argsort(prompts[group_ids] + counts * longest, kind="stable")
        group_ids = group_ids[order]
        here = lengths[group_ids, columns]  # (G', M')
        between_groups, between_columns, whole = cuts(prompts[group_ids], here, budget)
        best = np.concatenate([between_groups, between_columns]).min(initial=np.inf)
        if whole <= best:
            yield group_ids, columns
        elif best in between_groups:
            g = 1 + middle(between_groups == best)
            waiting += [(group_ids[:g], columns), (group_ids[g:], columns)]
        else:
            m = columns.start + 1 + middle(between_columns == best)
            waiting += [(group_ids, slice(columns.start, m)), (group_ids, slice(m, columns.stop))]


def cuts(
    prompts: np.ndarray, lengths: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return a rectangle's cost for each cut between groups, each cut between columns, and uncut.

    The first two are (G - 1,) and (M - 1,). Arguments as in `rectangles`, without empty groups and
    columns.
    """

    def cost(tokens: Any) -> Any:
        # Every forward has a fixed cost besides that of its tokens.
        forwards = np.ceil(tokens / budget)
        return tokens + forwards * budget / LAUNCH

    G, M = lengths.shape
    longest = lengths[:, 0]
    counts = (lengths > 0).sum(1)  # (G,)
    before = padded(prompts, longest, counts)  # (G,)
    after = padded(prompts[::-1], longest[::-1], counts[::-1])[::-1]  # (G,)
    between_groups = cost(before[:-1]) + cost(after[1:])

    # A prompt is run once for the rows of its group, and again for those that are cut off.
    left = np.arange(1, M)
    widest = lengths.max(0)  # (M,)
    kept = prompts.max() + left * widest[0]  # (M - 1,)
    rest = prompts.max() + (M - left) * widest[1:]  # (M - 1,)
    cut_off = (lengths[:, 1:] > 0).sum(0)  # (M - 1,) groups with such rows
    between_columns = cost(G * kept) + cost(cut_off * rest)
    whole = G * (prompts.max() + M * widest[0])
    # A rectangle beyond the budget must be cut, unless it is a single row.
    if whole > budget and G * M > 1:
        return between_groups, between_columns, np.inf
    return between_groups, between_columns, cost(whole)


def middle(true: np.ndarray) -> int:
    """Return the middle index at which a vector is true: the most even of equally cheap cuts."""
    indices = np.flatnonzero(true)
    return indices[len(indices) // 2]


def padded(prompts: np.ndarray, longest: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the padded tokens of the first 1, 2, ... G groups, (G,).

    prompts, longest  (G,), tokens of each group's prompt and of its longest row
    counts            (G,), its rows
    """
    num_groups = np.arange(1, len(prompts) + 1)
    prompt = np.maximum.accumulate(prompts)
    response = np.maximum.accumulate(longest)
    num_rows = np.maximum.accumulate(counts)
    return num_groups * (prompt + num_rows * response)


def micro_batches(
    rollouts: Rollouts,
    group_ids: Iterable[int],
    budget: int,
    device: torch.device | str = "cpu",
    trained: Tensor | None = None,
) -> Iterator[MicroBatch]:
    """Cut groups into MicroBatches whose cost follows the tokens to run.

    rollouts   of this rank
    group_ids  which of the P_local to cut
    budget     the most tokens of a micro-batch, padding included; a single row may exceed it
    device     where the micro-batches go
    trained    (P_local, N) bool, the rows to run (default: all)

    Yields MicroBatches that together contain each row to run exactly once.
    """
    # A row that is not run has length 0, so that the cut is a matter of lengths alone.
    lengths = rollouts.lengths
    if trained is not None:
        lengths = lengths * trained.to(lengths.device)
    ids = np.array(list(group_ids), dtype=int)
    cut = lengths.numpy()[ids]  # (G, N)
    # Sort by length so that rows that are cut together need little padding.
    order = np.argsort(-cut, axis=1, kind="stable")
    cut = np.take_along_axis(cut, order, 1)
    prompts = np.array([len(rollouts.prompts[g]) for g in ids])  # (G,)
    for part, columns in rectangles(prompts, cut, budget):
        yield micro_batch(rollouts, ids[part], order[part][:, columns], device, lengths)


def micro_batch(
    rollouts: Rollouts,
    group_ids: np.ndarray,
    columns: np.ndarray,
    device: torch.device | str,
    lengths: Tensor,
) -> MicroBatch:
    """Return the MicroBatch of G groups of this rank's rollouts.

    group_ids  (G,), which of the P_local
    columns    (G, M), which of the N rollouts of each
    device     where it goes
    lengths    (P_local, N), 0 for a row that is not run
    """
    N = lengths.shape[1]
    row_ids = torch.from_numpy(group_ids[:, None] * N + columns)  # (G, M)
    lengths = lengths.flatten()[row_ids]  # (G, M)
    # Padded to its own longest response, not to the longest of all.
    L = int(lengths.max())
    tokens = rollouts.tokens[..., :L]
    targets = tokens.flatten(0, 1)[row_ids]  # (G, M, L)
    # Made from lengths, because the padding's id may be that of a stop token.
    mask = torch.arange(L) < lengths[..., None]  # (G, M, L)
    # Found on the host, because nonzero() on a GPU would synchronise.
    token_index = mask.flatten().nonzero().squeeze(1)  # (tokens,)

    prompts = [rollouts.prompts[g] for g in group_ids]
    prefix, prefix_lengths, last = split(prompts, "cpu")
    # Nothing is predicted from the last target.
    prompt_end = last[:, None, None].expand(*row_ids.shape, 1)  # (G, M, 1)
    inputs = torch.cat([prompt_end, targets[..., :-1]], -1)  # (G, M, L)
    batch = MicroBatch(row_ids, prefix, prefix_lengths, inputs, targets, mask, token_index)
    for name, values in vars(batch).items():
        if name != "prefix_lengths":
            setattr(batch, name, values.to(device, non_blocking=True))
    return batch
