"""Figures and jobs of the study."""

from twoscale.figures.catalogue import Figure, reading, reference_state, table

FIGURES = (
    Figure(
        "variants",
        table("loop_metrics", "drift", "training"),
        values=lambda config: reference_state(config) | reading(config),
        target="variants",
        training=True,
        study="variants",
    ),
)
