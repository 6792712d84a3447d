"""Everything that the rules compute: the runs of a config, and the files, params and resources of
their jobs.
"""
