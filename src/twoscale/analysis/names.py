"""Names of exit criteria as they are printed in figures and pages."""

CRITERION_NAMES = {"kl": "KL", "minp_kl": "min-p KL"}


def criterion_name(criterion: str) -> str:
    return CRITERION_NAMES.get(criterion, criterion.replace("_", " "))
