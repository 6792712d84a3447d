"""Two-Scale Latent Dynamics for Recurrent-Depth Transformers, reproduced (arXiv 2509.23314).

snakemake --cores all           the five figures and the claims of the run that config.yaml selects
snakemake supplementary         figures that the paper does not have
snakemake results/fig4.pdf      one figure and what it needs
snakemake variants              the model under several variants of the paper, side by side
snakemake seeds                 the run under several seeds: spread of every quantity, verdicts over seeds
snakemake snapshot              figures, claims and tables of the run in one folder, with a manifest
snakemake export                the trained model as a folder that the transformers library loads
snakemake --config release=DIR  figures and claims from the tables of such a folder, or of one at an address
snakemake baselines             the looped model compared with models without loops
snakemake adapter_init          the model under several adapter initialisations, and the angles that follow
snakemake -n                    what would be done
snakemake --list-rules          every rule in a line: targets, figures, and the jobs that lead to them
"""

from snakemake.utils import min_version

min_version("9.27")


# reads config.yaml
include: "workflow/rules/common.smk"
include: "workflow/rules/base.smk"


# the stages in the order of the paper
if runs.release is None:

    include: "workflow/rules/data.smk"
    include: "workflow/rules/training.smk"
    include: "workflow/rules/trajectories.smk"
    include: "workflow/rules/exits.smk"

else:  # tables of another machine take the place of all these jobs

    include: "workflow/rules/released.smk"


include: "workflow/rules/claims.smk"
include: "workflow/rules/figures.smk"


if runs.release is None:

    include: "workflow/rules/report.smk"
    include: "workflow/rules/export.smk"

    # questions beyond the paper; a study that only draws a figure has no rules
    for study in study_files("rules.smk"):

        include: f"src/twoscale/studies/{study}/rules.smk"


report: "workflow/report/workflow.rst"


wildcard_constraints:
    run=alternatives(runs),
    iteration=r"\d{6}",
    grid=alternatives(runs.config.exit_grids),
    criterion=runs.criterion_pattern,


rule all:
    """Target: the paper's figures and the verdicts on its claims, for the run that config.yaml selects (the default)"""
    default_target: True
    input:
        runs.figures.results,
