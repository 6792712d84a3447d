#!/usr/bin/env bash
# Stops what `start-slurm.sh FOLDER` started: its jobs, then the daemons of its pid files, each only while the
# process still carries the daemon's name. The file of a daemon has its name, that of a slurmd also that of its node.
set -u
BASE=${1:?folder that start-slurm.sh was given}
export SLURM_CONF=$BASE/etc/slurm.conf
PATIENCE=60 # seconds

pid_of() {
  local pid
  [ -s "$BASE/run/$1.pid" ] || return 1
  pid=$(tr -dc 0-9 <"$BASE/run/$1.pid")
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "${1%-*}" ] && echo "$pid"
}

active_jobs() { timeout 10 squeue -h -o %i -t pending,running,completing 2>/dev/null; }

# the processes of a job outlive slurmd
if pid_of slurmctld >/dev/null && pid_of slurmd-n1 >/dev/null && [ -n "$(active_jobs)" ]; then
  timeout 10 scancel --user="$(id -un)"
  end=$((SECONDS + PATIENCE))
  while [ -n "$(active_jobs)" ] && [ $SECONDS -lt $end ]; do sleep 0.2; done
fi

for daemon in slurmd-n1 slurmd-n2 slurmctld munged; do
  pid=$(pid_of "$daemon") || continue
  kill -TERM "$pid"
  end=$((SECONDS + PATIENCE))
  while kill -0 "$pid" 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.1; done
  if kill -KILL "$pid" 2>/dev/null; then
    echo "$daemon ($pid) did not end within $PATIENCE s and was killed" >&2
  fi
done
