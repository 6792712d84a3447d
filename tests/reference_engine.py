"""A plain reference for the exit engine: slow, and short enough to be checked by reading.

One text, one token after another, nothing gathered, nothing allocated in advance. It shares with the library
only the verbs of the model; when a token leaves is decided here again, with the formulas of the paper, so it
is an oracle for `twoscale.inference` and for `twoscale.exits`.
"""

import math
from collections import defaultdict

import torch


@torch.no_grad()
def evaluate(model, tokens, rule, threshold, budget, noise, kv_slots=None, warm_from=None):
    """Read the text `tokens` (T,) under an exit rule; `noise` is that of a batch of this one sequence.

    kv_slots: how many keys of a token are kept, if not all. warm_from: from this token on a group starts from
    the state with which the token before left it. Returns logits (T, V), steps and evaluations (G, T).
    """
    embedded = model.embed(tokens[None])[0]  # (T, C)
    memory = defaultdict(lambda: defaultdict(list))  # layer -> token -> its (key, value), one per evaluation
    left = {}  # group -> state of the token before
    logits, spent = [], []
    for token in range(len(tokens)):

        def attend(k, token=token):
            return lambda layer, q, key, value: attention(memory[layer], token, k, kv_slots or budget, q, key, value)

        def own_noise(group, k, like, token=token):
            return noise(group, k, embedded[None])[:, token]

        hidden = embedded[token, None]  # (1, C)
        for stage, index in model.stages:
            if stage == "layer":
                hidden = model.single_layer(index, hidden, attend(0))
                continue
            f = block_map(model, index, hidden, attend, own_noise)
            warm = warm_from is not None and token >= max(warm_from, 1)
            x0 = left[index] if warm else model.enter(index, hidden, own_noise)
            x, steps, evaluations = loop(f, x0, rule, threshold, budget, model.decode)
            left[index] = x
            hidden = model.leave(index, x)
            spent.append((steps, evaluations))
        logits.append(model.decode(hidden)[0])
    steps, evaluations = torch.tensor(spent, dtype=torch.int64).reshape(len(tokens), len(model.groups), 2).unbind(-1)
    return torch.stack(logits), steps.T, evaluations.T


def block_map(model, group, entered, attend, noise):
    """The f of Algorithm 1 for one token: x^{k+1} = f(k, x^k). It knows k because the memory is read by it."""
    injected = model.inject(group, entered)
    return lambda k, x: model.step(group, model.disturb(group, k, x, noise), injected, attend(k))


def attention(memory, token, k, slots, q, key, value):
    """softmax(q keys / sqrt(D)) values for one token at loop step k; q, key, value (1, H, D).

    An earlier token is seen as it was at the last of its steps that fell on the slot of step k; with a slot
    for every step that is its own step k. If none did, it left before: then at its last step.
    """
    memory[token].append((key[0], value[0]))
    seen = [(memory[earlier][k % slots :: slots] or memory[earlier])[-1] for earlier in range(token + 1)]
    keys, values = (torch.stack(rows) for rows in zip(*seen, strict=True))  # (T, H, D) each
    scores = torch.einsum("hd,thd->ht", q[0], keys) / math.sqrt(q.shape[-1])
    return torch.einsum("ht,thd->hd", scores.softmax(-1), values)[None]


def loop(f, x0, rule, threshold, budget, decode):
    """(state that goes on, its steps, calls of f) for one token in one group."""
    if rule == "acceleration":
        return two_hit_acceleration(f, x0, threshold, budget)
    x = x0
    for k in range(budget):
        x_new = f(k, x)
        if rule == "fixed":
            leaves = k + 1 == threshold
        elif rule == "step_norm":
            leaves = length(x_new - x) < threshold
        elif rule == "kl":
            p, p_before = (torch.softmax(decode(state), -1) for state in (x_new, x))
            leaves = (p * torch.log(p / p_before)).sum() < threshold
        else:
            raise ValueError(rule)
        x = x_new
        if leaves:
            return x, k + 1, k + 1
    return x, budget, budget


def two_hit_acceleration(f, x0, threshold, k_max):
    """Algorithm 1 of the paper, line by line: (x*, k, calls of f)."""
    k, calls = 0, 0
    d_prev, prev_small = None, False
    while k < k_max:
        x1 = f(k, x0)
        calls += 1
        d_cur = x1 - x0
        if d_prev is not None:
            a = length(d_cur - d_prev)
            small = a < threshold
            if small and prev_small:
                break
            prev_small = small
        d_prev = d_cur
        x0 = x1
        k = k + 1
    return x0, k, calls


def length(vector):
    return math.sqrt(sum(component**2 for component in vector.flatten().tolist()))
