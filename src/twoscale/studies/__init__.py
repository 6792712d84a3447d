"""Studies beyond the paper: a folder each, named in `twoscale.base.STUDIES`."""

import twoscale.config  # noqa: F401 - imports the sections of all studies, which must not begin with one of them
