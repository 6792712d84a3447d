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


# One file per stage, in the order of their names; released tables need no job that computes. The figures come last: a
# stage may append to runs.figures.
for stage in sorted(path.stem for path in (PROJECT / "workflow" / "rules").glob("*.smk")):
    if stage not in ("common", "figures") and (runs.release is None or stage in ("measurements", "released_tables")):

        include: f"workflow/rules/{stage}.smk"


include: "workflow/rules/figures.smk"


report: "workflow/report/workflow.rst"


# All jobs in one image, with `--software-deployment-method apptainer` and not otherwise: Snakemake refuses a path with
# blanks even where no container is wanted.
if IN_CONTAINER:

    container: str(IMAGE)


wildcard_constraints:
    run=alternatives(runs),
    iteration=r"\d{6}",


snakefile.describe(workflow, runs)


# two jobs that need the GPU of one machine take turns; a cluster gives each job its own GPU
resource_scopes:
    gpu_slot="local",


rule all:
    """Target: the paper's figures and the verdicts on its claims, for the run that config.yaml selects (the default)"""
    default_target: True
    input:
        runs.figures.results,
