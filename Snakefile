"""Two-Scale Latent Dynamics for Recurrent-Depth Transformers, reproduced (arXiv 2509.23314).

snakemake --cores all           the five figures and the claims of the run chosen in config.yaml
snakemake supplementary         the figures that the paper does not have
snakemake results/fig4.pdf      one figure and what it needs
snakemake readings              the model under several readings of the paper, side by side
snakemake -n                    what would be done
"""

from snakemake.utils import min_version

min_version("9.27")


configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/trajectories.smk"
include: "workflow/rules/metrics.smk"
include: "workflow/rules/exits.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/supplementary.smk"
include: "workflow/rules/scaling.smk"
include: "workflow/rules/kinds.smk"
include: "workflow/rules/readings.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"


report: "workflow/report/workflow.rst"


wildcard_constraints:
    run="|".join(map(re.escape, RUNS)),
    step=r"\d{6}",


# two jobs that need the GPU of one machine take turns; a cluster gives each job its own
resource_scopes:
    gpu_slot="local",


# quick, without torch: a queue would take longer than they do
localrules:
    aggregate_metrics,
    fig1,
    fig2,
    fig3,
    fig4,
    fig5,
    claims,
    training,
    aggregate_scaling,
    scaling,
    pareto,
    aggregate_paths,
    kinds,
    path_independence,
    readings,
    table_page,
    runtimes,


rule all:
    default_target: True
    input:
        FIGURES,
        CLAIMS,


rule supplementary:
    input:
        SUPPLEMENTARY + SCALING_FIGURES + PATH_TYPE_FIGURES,
