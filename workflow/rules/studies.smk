# The jobs of all studies: one rule for each row of JOBS in twoscale.studies.<name>.study, and a target rule for each
# study that has runs or a page of its own.
#
# in:  checkpoints, data/val.bin; tables
# out: the outputs of the rows

from twoscale.studies.rows import Measurement

for job in runs.jobs:
    if isinstance(job, Measurement):

        rule:
            name:
                job.name
            input:
                **runs.job_inputs(job),
            output:
                **job.outputs,
            log:
                job.log,
            benchmark:
                job.benchmark
            wildcard_constraints:
                run=runs.job_runs(job),
            conda:
                "../../envs/torch.yaml"
            threads: job.threads(runs, workflow.cores)
            resources:
                # `threads` is limited by the cores of the machine that runs Snakemake; a cluster job requests these
                **runs.torch_job(job.dtype, memory=8000, minutes=job.minutes, cpus_per_task=job.cpus),
            params:
                **kept_script("measure", job.config(runs), *job.tables, function=job.function),
            shell:
                "{params.command} --config {params.config:q} --threads {threads} {params.files} > {log:q} 2>&1"

    else:

        rule:
            name:
                job.name
            input:
                **runs.job_inputs(job),
            output:
                **outputs_of(job),
            log:
                job.log,
            localrule: True
            conda:
                "../../envs/analysis.yaml"
            resources:
                mem_mb=2000,
                runtime=30,
            params:
                **script("compare", function=job.function),
                config=job.config(runs),
                tables=table_columns(*job.tables),
                caption=runs.caption(),
            shell:
                JOB


for target in runs.study_targets:

    rule:
        name:
            target
        input:
            runs.target_files(target),
