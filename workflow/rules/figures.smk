# All figures. The catalogue, src/twoscale/figures/catalogue.py, has their tables, values and titles; scripts/draw.py
# calls the function `draw` of src/twoscale/figures/<name>.py, or `draw_<name>` in the module `draw` of a study.

from twoscale.config import text_label


use rule table_job as plot_fig1 with:
    """Figure: trajectories of tokens in the plane of their principal components"""
    input:
        state_paths=runs.figures.table("fig1", "state_paths"),
    output:
        figure=SHOWN.format("fig1.pdf"),
        picture=report(SHOWN.format("fig1.svg"), **runs.figures.in_report("fig1")),
    log:
        LOG.format("plot_fig1"),
    localrule: True
    params:
        **runs.figures.params("fig1"),


use rule table_job as plot_fig2 with:
    """Figure: drift between groups against loop steps"""
    input:
        drift=runs.figures.table("fig2", "drift"),
    output:
        figure=SHOWN.format("fig2.pdf"),
        picture=report(SHOWN.format("fig2.svg"), **runs.figures.in_report("fig2")),
    log:
        LOG.format("plot_fig2"),
    localrule: True
    params:
        **runs.figures.params("fig2"),


use rule table_job as plot_fig3 with:
    """Figure: step norms and angles of loop steps"""
    input:
        loop_metrics=runs.figures.table("fig3", "loop_metrics"),
    output:
        figure=SHOWN.format("fig3.pdf"),
        picture=report(SHOWN.format("fig3.svg"), **runs.figures.in_report("fig3")),
    log:
        LOG.format("plot_fig3"),
    localrule: True
    params:
        **runs.figures.params("fig3"),


use rule table_job as plot_fig4 with:
    """Figure: exit criteria: quality against latency"""
    input:
        exit_latency=runs.figures.table("fig4", "exit_latency"),
        exit_quality=runs.figures.table("fig4", "exit_quality"),
        exit_loops=runs.figures.table("fig4", "exit_loops"),
        exit_cost_matched=runs.figures.table("fig4", "exit_cost_matched"),
        exit_costs=runs.figures.table("fig4", "exit_costs"),
    output:
        figure=SHOWN.format("fig4.pdf"),
        picture=report(SHOWN.format("fig4.svg"), **runs.figures.in_report("fig4")),
    log:
        LOG.format("plot_fig4"),
    localrule: True
    params:
        **runs.figures.params("fig4"),


use rule table_job as plot_fig5 with:
    """Figure: angles over all loop steps"""
    input:
        loop_metrics=runs.figures.table("fig5", "loop_metrics"),
    output:
        figure=SHOWN.format("fig5.pdf"),
        picture=report(SHOWN.format("fig5.svg"), **runs.figures.in_report("fig5")),
    log:
        LOG.format("plot_fig5"),
    localrule: True
    params:
        **runs.figures.params("fig5"),


# A page to look at, not a figure of the catalogue: results/loops.html.
use rule table_job as plot_loops with:
    """Figure: the page on which each loop step of the tokens of a text can be looked at"""
    input:
        trajectories=runs.figures.loops_trajectories,
        state_paths=TABLE.format("state_paths"),
        loop_tokens=TABLE.format("loop_tokens"),
        loop_exits=TABLE.format("loop_exits"),
    output:
        page=SHOWN.format("loops.html"),
    log:
        LOG.format("plot_loops"),
    localrule: True
    params:
        **runs.params.call(
            "twoscale.report.loops.write_loops",
            config=runs.params.config_json("run", text=lambda config: text_label(config.data)),
        ),


# The figures of studies: plot_<name> for each row of FIGURES in src/twoscale/studies/<study>/study.py.
for figure in runs.figures:
    if figure.study_folder:

        rule:
            name:
                f"plot_{figure.name}"
            input:
                **runs.figures.inputs(figure),
            output:
                figure=SHOWN.format(f"{figure.name}.pdf"),
                picture=report(SHOWN.format(f"{figure.name}.svg"), **runs.figures.in_report(figure.name)),
            log:
                LOG.format(f"plot_{figure.name}"),
            localrule: True
            conda:
                "../../envs/analysis.yaml"
            params:
                **runs.figures.params(figure.name),
            shell:
                JOB

        # a docstring is no expression
        getattr(rules, f"plot_{figure.name}").rule.docstring = (
            f"Figure: {figure.label} (study {figure.study_folder})"
        )


# Copies, not the figures themselves: selecting another run copies its figures here without drawing them again.
rule show_figure:
    """Job: copy a figure of the selected run to results/"""
    input:
        unpack(runs.figures.to_show),
    output:
        figure="results/{figure}.pdf",
        picture="results/{figure}.svg",
    log:
        "results/logs/show_{figure}.log",
    wildcard_constraints:
        figure=alternatives(figure.name for figure in runs.figures),
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    shell:
        "(cp {input.figure:q} {output.figure:q} && cp {input.picture:q} {output.picture:q}) > {log:q} 2>&1"


rule show_page:
    """Job: copy a page of the selected run to results/"""
    input:
        unpack(runs.figures.to_show),
    output:
        "results/{page}",
    log:
        "results/logs/show_{page}.log",
    wildcard_constraints:
        page=r"[\w-]+\.(md|html)",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    shell:
        "cp {input:q} {output:q} > {log:q} 2>&1"


rule supplementary:
    """Target: figures that the paper does not have"""
    input:
        runs.figures.of_target("supplementary"),
