"""A plain reference for the exit engine: slow, and short enough to be checked by variant.

One text, one token after another, nothing gathered, nothing allocated in advance. It shares with
the library only the methods of the model. Exits are decided here again, with the formulas of the
paper, so it is an oracle for the engines and the criteria of `twoscale.exits`.
"""

import math
import sys
from collections import defaultdict

import torch

EPSILON = sys.float_info.min  # of Eq. 6: only keeps the ratio of zeros finite


class Attend:
    """Attention of one token of a text at loop step k, with its position and id."""

    def __init__(self, memory, text, token, k, slots):
        self.memory, self.token, self.k, self.slots = memory, token, k, slots
        self.positions, self.tokens = torch.tensor([token]), text[token, None]

    def __call__(self, layer, q, key, value):
        return attention(self.memory[layer], self.token, self.k, self.slots, q, key, value)


@torch.no_grad()
def evaluate(
    model,
    tokens,
    criterion,
    threshold,
    max_loops,
    noise,
    kv_slots=None,
    warm_from=None,
    readout="head",
):
    """Read the text `tokens` (T,) under an exit criterion; `noise` is that of a batch of this one
    sequence.

    kv_slots: how many keys of a token are kept, if not all. warm_from: from this token on a group
    starts from the state with which the token before left it. readout: as the key of `exits`.
    Returns logits (T, V), loop steps and evaluations (G, T).
    """
    embedded = model.embed(tokens[None], torch.arange(len(tokens)))[0]  # (T, C)
    memory = defaultdict(
        lambda: defaultdict(list)
    )  # layer -> token -> its (key, value), one per evaluation
    exit_states = {}  # group -> state of the token before
    logits, counts = [], []
    for token in range(len(tokens)):

        def attend(k, token=token):
            return Attend(memory, tokens, token, k, kv_slots or max_loops)

        def own_noise(group, k, like, token=token):
            return noise(group, k, embedded[None])[:, token]

        hidden = embedded[token, None]  # (1, C)
        for stage in model.stages:
            if not stage.is_group:
                hidden = model.unlooped_layer(stage.layer, hidden, attend(0))
                continue
            group = stage.group
            f = block_map(model, group, hidden, attend, own_noise)
            warm = warm_from is not None and token >= max(warm_from, 1)
            x0 = exit_states[group] if warm else model.init_state(group, hidden, own_noise)
            decode = model.exit_gate if criterion in GATED else model.readout
            if (
                readout == "remaining_layers"
                and criterion not in GATED
                and group == len(model.config.groups) - 1
            ):
                decode = through_remaining_layers(model, memory, tokens, token)
            x, loop_steps, evaluations = loop(f, x0, criterion, threshold, max_loops, decode)
            exit_states[group] = x
            hidden = model.finish(group, x)
            counts.append((loop_steps, evaluations))
        logits.append(model.readout(hidden)[0])
    shape = (len(tokens), len(model.config.groups), 2)
    loop_steps, evaluations = torch.tensor(counts, dtype=torch.int64).reshape(shape).unbind(-1)
    return torch.stack(logits), loop_steps.T, evaluations.T


def block_map(model, group, entered, attend, noise):
    """The f of Algorithm 1 for one token: x^{k+1} = f(k, x^k). It knows k because the memory is
    read by it.
    """
    injected = model.project_input(group, entered)
    return lambda k, x: model.recur(
        group, k, model.add_noise(group, k, x, noise), injected, attend(k)
    )


def through_remaining_layers(model, memory, text, token):
    """Decodes a state of the last group as if the token left with it; its keys and values are
    discarded.
    """
    last = len(model.config.groups) - 1
    behind = range(model.config.groups[last][-1] + 1, model.config.num_layers + 1)

    def decode(x):
        hidden = model.finish(last, x)
        for number in behind:
            seen = {earlier: list(memory[number][earlier]) for earlier in range(token)} | {
                token: []
            }
            hidden = model.unlooped_layer(number, hidden, Attend({number: seen}, text, token, 0, 1))
        return model.readout(hidden)

    return decode


def attention(memory, token, k, slots, q, key, value):
    """softmax(q keys / sqrt(D)) values for one token at loop step k; q (1, H, D), key and value (1,
    G, D).

    An earlier token is seen as it was at the last of its steps that fell on the slot of step k;
    with a slot for every step that is its own step k. If none did, it left before: then at its last
    step.
    """
    memory[token].append((key[0], value[0]))
    seen = [
        (memory[earlier][k % slots :: slots] or memory[earlier])[-1] for earlier in range(token + 1)
    ]
    keys, values = (torch.stack(rows) for rows in zip(*seen, strict=True))  # (T, G, D) each
    keys, values = (
        rows.repeat_interleave(q.shape[1] // rows.shape[1], 1) for rows in (keys, values)
    )  # (T, H, D)
    scores = torch.einsum("hd,thd->ht", q[0], keys) / math.sqrt(q.shape[-1])
    return torch.einsum("ht,thd->hd", scores.softmax(-1), values)[None]


def loop(f, x0, criterion, threshold, max_loops, decode):
    """(state that goes on, its steps, calls of f) for one token in one group."""
    if criterion in ACCELERATIONS:
        return two_hit_acceleration(f, x0, threshold, max_loops, ACCELERATIONS[criterion])
    if criterion == "act":
        return adaptive_computation_time(f, x0, threshold, max_loops, decode)
    states = [x0]
    for k in range(max_loops):
        states.append(f(k, states[-1]))
        if leaves(criterion, threshold, states, decode):
            break
    return states[-1], len(states) - 1, len(states) - 1


def leaves(criterion, threshold, states, decode):
    """Whether a token with the states x^0 … x^{k+1}, (1, C) each, leaves after its last step."""
    x, x_new = states[-2:]
    match criterion:
        case "fixed":
            return len(states) - 1 == threshold
        case "step_norm":
            return length(x_new - x) < threshold
        case "step_norm_relative":
            return length(x_new - x) / (length(x) + EPSILON) < threshold
        case "cosine":
            lengths = length(x) * length(x_new)  # a state of length zero has no angle
            return lengths > 0 and 1 - float((x * x_new).sum()) / lengths < threshold
        case "kl":
            return divergence(predicted(x_new, decode), predicted(x, decode)) < threshold
        case "minp_kl":
            before, after = (min_p_filtered(predicted(state, decode)) for state in (x, x_new))
            if len(states) == 2:
                before = [1 / len(after)] * len(after)
            return divergence(before, after) < threshold
        case "entropy_diff":
            before, after = (entropy(predicted(state, decode)) for state in (x, x_new))
            return abs(after - (100 if len(states) == 2 else before)) < threshold
        case "argmax_stability":
            tokens = [int(decode(state).argmax()) for state in states[1:]][-threshold - 1 :]
            return len(tokens) == threshold + 1 and len(set(tokens)) == 1
        case "confidence":
            return max(predicted(x_new, decode)) >= threshold
        case "margin":
            *_, second, first = sorted(predicted(x_new, decode))
            return first - second >= threshold
        case "entropy":
            return -sum(a * math.log(a) for a in predicted(x_new, decode)) < threshold
        case "exit_gate":
            gates = [float(decode(state)) for state in states[1:]]
            stays = math.prod(1 - gate for gate in gates)
            return 1 - stays >= threshold
    raise ValueError(criterion)


def predicted(state, decode):
    return torch.softmax(decode(state), -1)[0].tolist()


def divergence(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def min_p_filtered(p):
    """What is less than a tenth as likely as the likeliest token gets 1 / V; then everything is
    normalised.
    """
    kept = [a if a >= 0.1 * max(p) else 1 / len(p) for a in p]
    return [a / sum(kept) for a in kept]


def entropy(p):
    return -sum(a * math.log(a + 1e-10) for a in p)


def acceleration(x, d_cur, d_prev):
    return length(d_cur - d_prev)


def acceleration_normalized(x, d_cur, d_prev):
    return length(d_cur - d_prev) / (length(d_cur) + length(d_prev) + EPSILON)


def acceleration_relative(x, d_cur, d_prev):
    return length(d_cur - d_prev) / (length(x) + EPSILON)


ACCELERATIONS = {
    made.__name__: made for made in (acceleration, acceleration_normalized, acceleration_relative)
}


def two_hit_acceleration(f, x0, threshold, k_max, size=acceleration):
    """Algorithm 1 of the paper, line by line: (x*, k, calls of f)."""
    k, calls = 0, 0
    d_prev, prev_small = None, False
    while k < k_max:
        x1 = f(k, x0)
        calls += 1
        d_cur = x1 - x0
        if d_prev is not None:
            a = size(x0, d_cur, d_prev)
            small = a < threshold
            if small and prev_small:
                break
            prev_small = small
        d_prev = d_cur
        x0 = x1
        k = k + 1
    return x0, k, calls


GATED = ("exit_gate", "act")


def adaptive_computation_time(f, s0, epsilon, most, halting_unit):
    """Graves, arXiv 1603.08983, Eq. 5-13: (the mean state, its steps, calls of f)."""
    states, h = [s0], []
    while len(h) < most and sum(h) < 1 - epsilon:
        states.append(f(len(h), states[-1]))
        h.append(float(halting_unit(states[-1])))
    remainder = 1 - sum(h[:-1])
    p = [*h[:-1], remainder]
    return sum(p_n * s_n for p_n, s_n in zip(p, states[1:], strict=True)), len(h), len(h)


def length(vector):
    return math.sqrt(sum(component**2 for component in vector.flatten().tolist()))
