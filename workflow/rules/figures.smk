# All figures, one rule for each row of runs.figures: plot_<name> draws results/<name>.pdf with twoscale.figures.<name>.
#
# in:  the tables of the row
# out: results/<name>.pdf, and the same picture for the report as results/<name>.svg: sharp at every size, a browser shows
#      it without a viewer, and it is smaller than a PNG that is as wide as a screen

for figure in runs.figures:

    rule:
        name:
            f"plot_{figure.name}"
        input:
            **runs.report.figure_inputs(figure),
        output:
            figure=f"results/{figure.name}.pdf",
            picture=report(
                f"results/{figure.name}.svg",
                caption=str(PROJECT / figure.caption_file),
                category=figure.category,
                labels={"figure": figure.label},
            ),
        log:
            f"results/logs/plot_{figure.name}.log",
        localrule: True
        conda:
            "../../envs/analysis.yaml"
        params:
            **runs.params.script("draw", figure.module, modules=[figure.module]),
            config=runs.report.figure_slice(figure),
            caption=runs.report.caption(figure),
        shell:
            JOB


rule supplementary:
    input:
        runs.report.figure_files("supplementary"),
