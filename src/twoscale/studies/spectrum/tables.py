"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import STATISTICS, Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (token, group), from a loop that runs to its fixed point (module `measure`). Rates and
    # cosines are measured over the last updates of a path above the rounding floor. Columns from leading_modulus on are
    # null in sequences without exact blocks and for tokens without a fixed point; a quantity is also null if there are
    # too few updates to define it. Angles are in radians, 0 … π: a period is 2π / angle loop steps.
    "token_spectrum": table(
        "iteration sequence document position group",
        token=("int32", "token id"),
        token_class=("string", "first of the sequence, end of text, after end of text, or other"),
        frequency=("float64", "occurrences of the token per million training tokens; null without training text"),
        exact=("bool", "whether the sequence has exact blocks"),
        converged=("bool", "whether the token and all earlier ones have a fixed point"),
        steps=(
            "int32",
            "loop steps until the updates of the token and all earlier ones are below the rounding floor; -1: never",
        ),
        loops=("float32", "loop steps until the step norm is below spectrum.tolerance times the norm of the state"),
        rate=("float32", "geometric mean of the ratio of successive step norms"),
        cosine=("float32", "mean cosine of successive updates"),
        path_modulus=("float32", "modulus of the leading root of the path's two-term recurrence"),
        path_angle=("float32", "angle of the same root"),
        path_axis_ratio=("float32", "ratio of the short to the long axis of the path's spiral; null for a real root"),
        path_residual=("float32", "relative residual of the two-term recurrence"),
        leading_modulus=("float32", "modulus of the leading eigenvalue of the token's diagonal block"),
        leading_angle=("float32", "angle of the same eigenvalue"),
        leading_axis_ratio=(
            "float32",
            "ratio of the short to the long axis of the eigenvalue's spiral; 0 if the eigenvalue is real",
        ),
        leading_spiral=("float32", "mean cosine on this spiral"),
        leading_singular_value=("float32", "largest singular value of the diagonal block"),
        prefix_modulus=("float32", "largest leading modulus of the token and all earlier ones"),
        prefix_angle=("float32", "angle of the same eigenvalue"),
        prefix_spiral=("float32", "mean cosine at this angle on a spiral with the shape of the token's path"),
        source=("int32", "position of the token with the prefix eigenvalue; -1 without exact blocks"),
        isolated_rate=("float32", "rate with all earlier tokens at their fixed points"),
        isolated_cosine=("float32", "cosine with all earlier tokens at their fixed points"),
        isolated_loops=("float32", "loops with all earlier tokens at their fixed points"),
        slowed_rate=("float32", "rate with the token at spectrum.slowed_position slowed; null up to this position"),
        slowed_cosine=("float32", "cosine with this token slowed"),
        slowed_modulus=("float32", "prefix modulus with this token slowed"),
        slowed_angle=("float32", "prefix angle with this token slowed"),
        direction_frozen=(
            "bool",
            "whether the states of the token and all earlier ones, or their directions, converge",
        ),
        direction_exponent=(
            "float32",
            "exponent of the power of k by which steps of x / ||x|| fall; null with a fixed point",
        ),
        direction_rate=("float32", "rate of the steps of the direction; null with a fixed point"),
        direction_modulus=(
            "float32",
            "modulus of the leading eigenvalue of the map on directions; null with a fixed point",
        ),
        direction_angle=("float32", "angle of the same eigenvalue"),
        direction_half_modulus=("float32", "direction_modulus after half of the loop steps"),
        direction_prefix_modulus=("float32", "largest direction_modulus of the token and all earlier ones"),
    ),
    # Agreement of the spectrum's predictions with the paths, one row per (checkpoint, group, prediction, quantity),
    # over tokens that have a fixed point, with 95 % intervals over documents.
    "spectrum": table(
        "run iteration group prediction quantity tokens",
        prediction=("string", "leading, prefix, path, isolated, slowed or direction: docs/spectrum.md"),
        quantity=(
            "string",
            "rate, cosine (of the angle), spiral (mean cosine on the ellipse) or half: docs/spectrum.md",
        ),
        predicted=("float64", "mean prediction over tokens"),
        measured=("float64", "mean measured value over tokens"),
        correlation=("float64", "correlation of predicted and measured over tokens"),
        correlation_low=("float64", "lower end of the 95 % interval of correlation"),
        correlation_high=("float64", "upper end of the 95 % interval of correlation"),
        difference=("float64", "mean absolute difference between predicted and measured"),
        difference_low=("float64", "lower end of the 95 % interval of difference"),
        difference_high=("float64", "upper end of the 95 % interval of difference"),
        within=("float64", "correlation of deviations from the means of each sequence"),
        placebo=("float64", "the same correlation with the predictions of the other sequences at the same positions"),
        nearer=(
            "float64",
            "share of tokens nearer to this prediction than to the leading eigenvalue's, where the two differ",
        ),
    ),
    "spectrum_metrics": table("run iteration group", measure=("string", 'a column of "token_spectrum"'), **STATISTICS),
    # The slow tokens: one row per (checkpoint, group, property, class) over tokens with exact blocks and a fixed
    # point, with 95 % intervals over documents.
    "slow_tokens": table(
        "run iteration group property class tokens",
        property=("string", "token_class, position or frequency"),
        **{"class": ("string", "class of the property")},
        share=("float64", "share of all tokens"),
        leading_modulus=("float64", "mean leading modulus over the tokens of the class"),
        prefix_share=("float64", "share of all tokens whose prefix eigenvalue belongs to a token of the class"),
        prefix_share_low=("float64", "lower end of the 95 % interval of prefix_share"),
        prefix_share_high=("float64", "upper end of the 95 % interval of prefix_share"),
    ),
}
