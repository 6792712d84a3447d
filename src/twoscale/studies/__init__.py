"""Studies: questions beyond the paper, one folder each. They import no other study."""

import twoscale.config  # noqa: F401 - first, because it imports the sections of all studies
