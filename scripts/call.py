"""Rules of jobs without torch: call the function with this dotted path on the files of the job."""

from twoscale.jobs import command
from twoscale.jobs.rows import StudyJob
from twoscale.workflow.runs import files_of

if __name__ == "__main__":
    path = command.function_argument()
    call = command.function(path)
    names = files_of(path)
    parser = command.parser(__doc__)
    command.add_files(parser, names)
    command.run(lambda arguments: call(StudyJob(arguments.config, command.files(arguments, names))), parser)
