# Jobs on checkpoints and on their tables: one rule for each row of JOBS in twoscale.workflow.core and, for a study, in
# twoscale.studies.<name>.study; and a target rule for each study that has runs or a page of its own.
#
# in:  checkpoints, data/{val,train}.bin; tables
# out: the outputs of the rows

from twoscale.jobs.rows import TorchJob
from twoscale.workflow.core import JOBS

WRITTEN = [job.name for job in JOBS]  # as rules in the file of their stage


def outputs_of(job):
    """The outputs of a row, of which the report shows the page; those without a suffix are folders."""
    if not job.report:
        return {name: path if Path(path).suffix else directory(path) for name, path in job.outputs.items()}
    category, label = job.report
    caption = str(PROJECT / job.caption_file)
    return job.outputs | dict(
        page=report(job.outputs["page"], caption=caption, category=category, labels={"page": label})
    )


for job in runs.jobs:
    if job.name in WRITTEN:
        continue
    if isinstance(job, TorchJob):

        rule:
            name:
                job.name
            input:
                **job.files(runs),
            output:
                **job.outputs,
            log:
                job.log,
            benchmark:
                job.benchmark
            wildcard_constraints:
                run=runs.trained_pattern if job.trained else alternatives(runs),
            group:
                job.group(runs)
            conda:
                "../../envs/torch.yaml"
            threads: job.threads(runs, workflow.cores)
            resources:
                # `threads` is limited by the cores of the machine that runs Snakemake; a cluster job requests these
                **runs.params.torch_job(job.dtype, minutes=job.minutes, cpus=job.cpus),
            params:
                **runs.params.measure(job.function, job.tables, job.config(runs)),
            shell:
                "{params.command} --config {params.config:q} --threads {threads} {params.files} > {log:q} 2>&1"

    else:

        rule:
            name:
                job.name
            input:
                **job.files(runs),
            output:
                **outputs_of(job),
            log:
                job.log,
            wildcard_constraints:
                run=runs.trained_pattern if job.trained else alternatives(runs),
            localrule: True
            conda:
                "../../envs/analysis.yaml"
            params:
                **runs.params.call(job.function, job.tables, job.config(runs), job.modules(runs)),
                caption=runs.figures.caption(),
            shell:
                JOB


for target, files in runs.figures.study_targets.items():
    if target == "snapshot":
        continue

    rule:
        name:
            target
        input:
            files,
