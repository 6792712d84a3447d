"""Two-Scale Latent Dynamics for Recurrent-Depth Transformers, reproduced (arXiv 2509.23314).

snakemake --cores all           the five figures and the claims of the run chosen in config.yaml
snakemake results/fig4.pdf      one figure and what it needs
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
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"


report: "workflow/report/workflow.rst"


wildcard_constraints:
    run="|".join(map(re.escape, RUNS)),
    step=r"\d{6}",


# two jobs that need the GPU of one machine take turns; a cluster gives each job its own
resource_scopes:
    gpu_slot="local",


rule all:
    default_target: True
    input:
        FIGURES,
        CLAIMS,
