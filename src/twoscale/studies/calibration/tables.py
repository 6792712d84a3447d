"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # Points on the paths through the thresholds of an exit criterion, from many evaluations to few (snakemake
    # results/calibration.pdf): one row per (criterion, path, point, held-out sequence) of the documents used to
    # choose thresholds or to report them. Means are over the tokens that belong to `document`.
    "calibration_runs": table(
        "run criterion path point part sequence document tokens ce",
        path=("string", "common: one threshold for all groups; per_group: one for each group"),
        point=("int32", "number of the point on its path, from 0"),
        part=("string", "calibration or report"),
        tokens=("int64", "number of tokens of the sequence that belong to the document"),
        full_depth_ce=("float64", "nats per token at full depth"),
        agreement=("float64", "share of tokens whose most likely next token is the same as at full depth"),
        evaluations=("float64", "mean evaluations of f per token and group"),
    ),
    # The thresholds of the points: one row per (criterion, path, point, group).
    "calibration_paths": table(
        "run criterion path point group threshold",
        path=("string", "common or per_group"),
        point=("int32", "number of the point on its path, from 0"),
    ),
    # Guarantees and whether they were kept: one row per (criterion, path, loss, epsilon). Columns from `loss` on are
    # measured on the documents of the report. If no threshold was chosen, tokens run at full depth.
    "calibration": table(
        "run criterion",
        path=("string", "common or per_group"),
        guarantee=("string", "ce: rise in nats per token; disagreement: share of changed most likely next tokens"),
        epsilon=("float64", "guaranteed upper bound on the mean clipped loss over units"),
        delta=("float64", "probability with which the guarantee may be broken"),
        units=("int64", "number of documents or sequences used to choose the threshold"),
        point=("int32", "number of the chosen point on its path; -1: none"),
        p_value=("float64", "p-value of the chosen point, or of the first point if none is chosen"),
        report_documents=("int64",),
        loss=("float64", "mean loss over units, each clipped as in the test"),
        loss_low=("float64", "lower end of the 95 % interval over documents"),
        loss_high=("float64", "upper end of the interval"),
        unclipped=("float64", "mean loss over tokens, not clipped"),
        saved=("float64", "evaluations saved, as a share of the evaluations at full depth"),
        saved_low=("float64", "lower end of the 95 % interval over documents"),
        saved_high=("float64", "upper end of the interval"),
        verdict=("string", "verdict on the guarantee: holds, does not hold, cannot be judged, or no threshold"),
    ),
    # The chosen thresholds: one row per (criterion, path, guarantee, epsilon, group), if a threshold was chosen.
    "calibrated_thresholds": table(
        "run criterion path guarantee epsilon group threshold",
        path=("string", "common or per_group"),
        guarantee=("string", "ce or disagreement"),
        epsilon=("float64",),
    ),
}
