"""Rules of jobs without torch: call the function with this dotted path on the files of the job."""

from twoscale.jobs import command
from twoscale.jobs.rows import StudyJob

if __name__ == "__main__":
    call = command.function_argument()
    parser, names = command.parser_of_options(__doc__)
    command.run(lambda arguments: call(StudyJob(arguments.config, command.files(arguments, names))), parser)
