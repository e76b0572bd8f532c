"""How rows of many lengths are cut into micro-batches with little padding. Arithmetic on lengths alone.

A micro-batch is a rectangle: some groups, and as many rows of each, all padded to the longest. The prompts of its groups are
padded to the longest too and run once. Groups may have fewer rows to run: the cut follows the counts. Letters: G groups, M
rows of each.
"""

import numpy as np
import torch

from maxrl.rollouts import MicroBatch, Rollouts, upload
from maxrl.sampling.prompts import split

LAUNCH = 32  # a forward and its backward take as long as budget / LAUNCH tokens, beside those that they have


def rectangles(prompts, lengths, budget: int):
    """Cut the rows of G groups into rectangles, each of some groups and some columns.

    prompts  (G,), an array of tokens
    lengths  (G, M), an array; each group from its longest row to its shortest. A row of length 0 is not run: it is
             in a rectangle only where other groups have longer ones, as padding
    budget   the most padded tokens of a rectangle, unless it is a single row

    Yields pairs of the groups, (G',), and the slice of columns.
    """
    waiting = [(np.arange(len(lengths)), slice(0, lengths.shape[1]))]
    while waiting:
        groups, columns = waiting.pop()
        # What is empty is not run: groups, and the columns behind the last row of all.
        groups = groups[lengths[groups, columns.start] > 0]
        if len(groups) == 0:
            continue
        counts = (lengths[groups, columns] > 0).sum(1)  # (G',)
        columns = slice(columns.start, columns.start + int(counts.max()))
        rows = lengths[groups, columns]  # (G', M')
        # Groups that cost alike stay together.
        order = np.argsort(prompts[groups] + counts * rows[:, 0], kind="stable")
        groups = groups[order]
        rows = rows[order]
        between_groups, between_columns, whole = cuts(prompts[groups], rows, budget)
        best = np.concatenate([between_groups, between_columns]).min(initial=np.inf)
        if whole <= best:
            yield groups, columns
        elif best in between_groups:
            g = 1 + middle(between_groups == best)
            waiting += [
                (groups[:g], columns),
                (groups[g:], columns),
            ]
        else:
            m = columns.start + 1 + middle(between_columns == best)
            waiting += [
                (groups, slice(columns.start, m)),
                (groups, slice(m, columns.stop)),
            ]


def cuts(prompts, lengths, budget: int):
    """Return what a rectangle costs if it is cut in two: between groups, between columns, nowhere.

    Arguments as of `rectangles`, no group and no column empty. Returns costs (G - 1,), (M - 1,) and a number.
    """

    def cost(tokens):
        # Each forward takes some time beside that of its tokens.
        forwards = np.ceil(tokens / budget)
        return tokens + forwards * budget / LAUNCH

    G, M = lengths.shape
    longest = lengths[:, 0]
    counts = (lengths > 0).sum(1)  # (G,)
    first = padded(prompts, longest, counts)  # (G,)
    last = padded(prompts[::-1], longest[::-1], counts[::-1])[::-1]  # (G,)
    between_groups = cost(first[:-1])
    between_groups += cost(last[1:])

    # A prompt is run once for all rows of its group, and again for those that are cut off.
    left = np.arange(1, M)
    longest = lengths.max(0)  # (M,)
    first = prompts.max() + left * longest[0]
    last = prompts.max() + (M - left) * longest[1:]
    cut_off = (lengths[:, 1:] > 0).sum(0)  # (M - 1,) groups with such rows
    between_columns = cost(G * first)
    between_columns += cost(cut_off * last)
    whole = G * (prompts.max() + M * longest[0])
    # Too large is no choice, but a single row cannot be cut.
    if whole > budget and G * M > 1:
        return between_groups, between_columns, np.inf
    return between_groups, between_columns, cost(whole)


def middle(true) -> int:
    """Return the middle one of the places where a vector is true: of cuts that cost the same, the even one."""
    places = np.flatnonzero(true)
    return places[len(places) // 2]


def padded(prompts, longest, counts):
    """Return the padded tokens of the first 1, 2, ... G groups, (G,).

    prompts, longest  (G,), tokens of each group's prompt and of its longest row
    counts            (G,), its rows
    """
    groups = np.arange(1, len(prompts) + 1)
    prompt = np.maximum.accumulate(prompts)
    response = np.maximum.accumulate(longest)
    rows = np.maximum.accumulate(counts)
    return groups * (prompt + rows * response)


def micro_batches(rollouts: Rollouts, groups, budget: int, device="cpu", live=None):
    """Cut groups into MicroBatches, whose cost follows the tokens that are there.

    rollouts  of this rank
    groups    which of the P_local to cut
    budget    the most padded tokens of a micro-batch, unless it is a single row
    device    where the micro-batches go
    live      (P_local, N) bool, the rows to run; without it all

    Yields MicroBatches, in which every row to run stands once.
    """
    # A row that is not run has no tokens: what follows knows of lengths alone.
    lengths = rollouts.lengths
    if live is not None:
        lengths = lengths * live.to(lengths.device)
    groups = np.array(groups, dtype=int)
    cut = lengths.numpy()[groups]  # (G, N)
    # Long rows beside long ones: what is cut off together is padded to one length.
    order = np.argsort(-cut, axis=1, kind="stable")
    cut = np.take_along_axis(cut, order, 1)
    prompts = np.array([len(rollouts.prompts[g]) for g in groups])  # (G,)
    for part, columns in rectangles(prompts, cut, budget):
        rows = order[part][:, columns]  # (G', M)
        yield micro_batch(rollouts, groups[part], rows, device, lengths)


def micro_batch(rollouts: Rollouts, groups, rows, device="cpu", lengths=None) -> MicroBatch:
    """Return the MicroBatch of G groups of this rank's rollouts.

    groups   (G,), an array: which of the P_local
    rows     (G, M), an array: which of the N rollouts of each
    device   where it goes
    lengths  (P_local, N), 0 for a row that is not run; without it those of the rollouts
    """
    if lengths is None:
        lengths = rollouts.lengths
    N = lengths.shape[1]
    rows = groups[:, None] * N + rows
    rows = torch.from_numpy(rows)  # (G, M)
    lengths = lengths.flatten()[rows]  # (G, M)
    # As long as its own longest response, not as the longest of all.
    L = int(lengths.max())
    tokens = rollouts.tokens[..., :L]
    targets = tokens.flatten(0, 1)[rows]  # (G, M, L)
    # From lengths: the padding's id may be that of an end token.
    mask = torch.arange(L) < lengths[..., None]  # (G, M, L)
    # A device that looked for them would have to be waited for.
    places = mask.flatten().nonzero()
    places = places.squeeze(1)  # (tokens,)

    prompts = [rollouts.prompts[g] for g in groups]
    prefix, prefix_lengths, last = split(prompts, "cpu")
    # Nothing is predicted from the last target.
    M = rows.shape[1]
    first = last[:, None, None]
    first = first.expand(-1, M, 1)  # (G, M, 1)
    inputs = torch.cat([first, targets[..., :-1]], -1)  # (G, M, L)
    batch = MicroBatch(rows, prefix, prefix_lengths, inputs, targets, mask, places)
    for name, values in vars(batch).items():
        if name != "prefix_lengths":
            setattr(batch, name, upload(values, device))
    return batch
