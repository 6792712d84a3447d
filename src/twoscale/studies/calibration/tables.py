"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # Points on the paths through the thresholds of an exit criterion, from many evaluations to few (snakemake
    # results/calibration.pdf): one row per (criterion, path, point, held-out sequence) of the documents that choose
    # thresholds and of those that they are reported on. Means are over the tokens that belong to `document`.
    "calibration_runs": table(
        "run criterion path point part sequence document tokens ce",
        path=("string", "common: one threshold for all groups; per_group: one for each"),
        point=("int32", "of the point on its path, from 0"),
        part=("string", "calibration or report"),
        tokens=("int64", "of the sequence that belong to the document"),
        full_depth_ce=("float64", "nats per token at full depth"),
        agreement=("float64", "share of tokens whose most likely next token is that at full depth"),
        evaluations=("float64", "mean calls of f per token and group"),
    ),
    # The thresholds of the points: one row per (criterion, path, point, group).
    "calibration_paths": table(
        "run criterion path point group threshold",
        path=("string", "common or per_group"),
        point=("int32", "of the point on its path, from 0"),
    ),
    # Guarantees and whether they were kept: one row per (criterion, path, loss, epsilon). Columns from `loss` on are
    # measured on the documents of the report. Where the guarantee allows no threshold, tokens run at full depth.
    "calibration": table(
        "run criterion",
        path=("string", "common or per_group"),
        guarantee=("string", "ce: rise in nats per token; disagreement: share of other most likely next tokens"),
        epsilon=("float64", "most that is guaranteed, mean over units of the clipped loss"),
        delta=("float64", "probability with which the guarantee may be broken"),
        units=("int64", "documents or sequences that choose the threshold"),
        point=("int32", "of the chosen point on its path; -1: none"),
        p_value=("float64", "of the chosen point; of the first one of the path if none is chosen"),
        report_documents=("int64",),
        loss=("float64", "mean over units, each clipped as in the test"),
        loss_low=("float64", "95 % interval over documents"),
        loss_high=("float64", "95 % interval over documents"),
        unclipped=("float64", "mean over tokens of the loss as it is"),
        saved=("float64", "share of the evaluations at full depth"),
        saved_low=("float64", "95 % interval over documents"),
        saved_high=("float64", "95 % interval over documents"),
        verdict=("string", "on the guarantee: holds, does not hold, cannot be judged, or no threshold"),
    ),
    # The chosen thresholds: one row per (criterion, path, guarantee, epsilon, group); none where there is no threshold.
    "calibrated_thresholds": table(
        "run criterion path guarantee epsilon group threshold",
        path=("string", "common or per_group"),
        guarantee=("string", "ce or disagreement"),
        epsilon=("float64",),
    ),
}
