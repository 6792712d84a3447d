"""From a script to a job: command line, fingerprint of its code, processes and GPUs."""
