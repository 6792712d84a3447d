"""Training, iteration by iteration: results/training.pdf."""

from twoscale.figures.catalogue import Figure, inputs_from

FIGURES = (
    Figure(
        "training",
        inputs_from("training", "training_loops"),
        loops=lambda config: config.train.held_out_loops,
        values=lambda config: {
            "mean_loops": config.model.mean_loops,
            "grad_clip": config.train.grad_clip,
        },
        groups=0,
        training=True,
        sentence="twoscale.studies.training.draw.sentence",
    ),
)
