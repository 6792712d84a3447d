"""From a script to a job: command line, fingerprint of its code, result cache, processes, GPUs and
messages.
"""
