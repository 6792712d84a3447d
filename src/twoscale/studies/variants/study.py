"""Figures and jobs of the study."""

from twoscale.figures.catalogue import Figure, reference_state, table

FIGURES = (
    Figure(
        "variants",
        table("loop_metrics", "drift", "training"),
        values=reference_state,
        target="variants",
        training=True,
        study="variants",
    ),
)
