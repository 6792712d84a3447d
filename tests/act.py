"""Adaptive computation time (Graves, arXiv 1603.08983) as a user's exit criterion; the model's gate
halts.
"""

import torch

from twoscale.exits.criteria import ExitCriterion


class ACT(ExitCriterion):
    """Halt when the sum of the halting probabilities is at least 1 - epsilon, the threshold."""

    keeps = "weighted"
    needs_gate = True

    def start(self, x0):
        return {"sum": torch.zeros_like(x0[:, 0])}

    def update(self, state, x_new, readout):
        halting = readout(x_new)
        total = state["sum"] + halting
        return total >= 1 - self.threshold, {"sum": total}, halting
