"""Rules without torch: call the function with this dotted path on the files of the job."""

from twoscale.jobs import command
from twoscale.jobs.table_job import TableJob

if __name__ == "__main__":
    call, names = command.called_job()
    parser = command.parser(__doc__, job_files=names)
    command.run(
        lambda arguments: call(TableJob(arguments.config, command.files(arguments, names))), parser
    )
