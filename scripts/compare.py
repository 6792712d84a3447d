"""Rules of comparisons: call the function with this dotted path on tables."""

import sys

from twoscale.jobs import command
from twoscale.jobs.study_job import StudyJob

if __name__ == "__main__":
    compare = command.function(sys.argv.pop(1))
    parser, names = command.parser_of_options(__doc__)
    command.run(lambda arguments: compare(StudyJob(arguments.config, command.files(arguments, names))), parser)
