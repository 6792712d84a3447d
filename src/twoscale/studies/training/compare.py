"""The result of training for the report."""

import pandas as pd


def sentence(table: pd.DataFrame) -> str:
    """Results for the report."""
    measured = table.dropna(subset="held_out_loss").iloc[-1]
    return f"Held-out loss {measured['held_out_loss']:.3f} nats per token after {measured['iteration']:.0f} iterations."
