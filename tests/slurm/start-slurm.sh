#!/usr/bin/env bash
# A SLURM of two nodes for the tests: on loopback, without systemd, cgroups and accounting, all in one folder.
#
#   start-slurm.sh FOLDER     installs slurm-wlm and munge where they are missing (Debian, root), starts munged,
#                             slurmctld and a slurmd for each node, and returns when the nodes take jobs;
#                             `. FOLDER/env.sh` then makes sbatch, squeue and srun talk to it
#   stop-slurm.sh FOLDER      ends its jobs and the daemons, by pid
#
# CTLD_PORT, SLURMD_PORT_1, SLURMD_PORT_2: ports on loopback. Exit status 77: there is no SLURM here and none can be
# installed.
# CPUs, memory and GPU are pretended, so that what jobs ask for does not depend on the machine; nothing is
# enforced but the wall time.
set -euo pipefail
BASE=${1:?folder for configuration, state and logs}
CTLD_PORT=${CTLD_PORT:-16817}
SLURMD_PORT_1=${SLURMD_PORT_1:-16818}
SLURMD_PORT_2=${SLURMD_PORT_2:-16819}
NODES="n1 n2"
CPUS=4
MEMORY_MB=64000
PATIENCE=120 # seconds
export PATH=$PATH:/usr/sbin:/sbin

cannot() { echo "no SLURM for the tests: $*" >&2; exit 77; }

install_packages() {
  [ "$(id -u)" = 0 ] || cannot "slurm-wlm and munge are not installed, and only root can install them"
  command -v apt-get >/dev/null || cannot "slurm-wlm and munge are not installed, and there is no apt-get"
  # keeps the packages' own scripts from starting daemons
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
  fi
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurm-wlm munge; } \
    >"$BASE/log/apt.log" 2>&1 \
    || cannot "apt-get could not install slurm-wlm and munge ($(tail -n 1 "$BASE/log/apt.log"))"
}

mkdir -p "$BASE"/{etc,run,log,state,spool,bin}
chmod 755 "$BASE" "$BASE/run" # munged refuses a socket that not everyone can reach
for program in munged slurmctld slurmd sbatch; do
  command -v "$program" >/dev/null || { install_packages; break; }
done
[ "$(id -u)" = 0 ] || cannot "slurmd runs jobs as root only"

HOST=$(hostname -s)
cat >"$BASE/etc/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$HOST(127.0.0.1)
SlurmctldPort=$CTLD_PORT
# loopback only
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$BASE/run/munge.socket
CredType=cred/munge
StateSaveLocation=$BASE/state
SlurmdSpoolDir=$BASE/spool/%n
SlurmctldPidFile=$BASE/run/slurmctld.pid
SlurmdPidFile=$BASE/run/slurmd-%n.pid
SlurmctldLogFile=$BASE/log/slurmctld.log
SlurmdLogFile=$BASE/log/slurmd-%n.log
MailProg=/bin/true
# no cgroups: processes of a job are found by their ancestry
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# believe the node line below instead of the hardware
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
# finished jobs stay visible to squeue and scontrol: there is no accounting
MinJobAge=3600
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
KillWait=5
TaskProlog=$BASE/bin/task-prolog
Epilog=$BASE/bin/epilog
GresTypes=gpu
# both nodes are this machine
NodeName=DEFAULT CPUs=$CPUS Sockets=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEMORY_MB \
  Gres=gpu:pretended:1 State=UNKNOWN
NodeName=n1 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$SLURMD_PORT_1
NodeName=n2 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$SLURMD_PORT_2
PartitionName=test Nodes=${NODES// /,} Default=YES DefaultTime=10 MaxTime=INFINITE State=UP
CONF
# a GPU without a file behind it is refused
echo "Name=gpu Type=pretended File=/dev/null" >"$BASE/etc/gres.conf"

export SLURM_CONF=$BASE/etc/slurm.conf
# Snakemake's executor for job steps hides SLURM_CONF from its srun
cat >"$BASE/bin/srun" <<SRUN
#!/bin/sh
SLURM_CONF=$SLURM_CONF exec $(command -v srun) "\$@"
SRUN
chmod 755 "$BASE/bin/srun"
# as on a cluster with node-local scratch: a job's temporary folder and home are its own and vanish with it
cat >"$BASE/bin/task-prolog" <<PROLOG
#!/bin/sh
scratch=$BASE/scratch/\$SLURM_JOB_ID
mkdir -p "\$scratch"
for name in TMPDIR HOME XDG_CACHE_HOME; do echo "export \$name=\$scratch"; done
PROLOG
cat >"$BASE/bin/epilog" <<EPILOG
#!/bin/sh
rm -rf "$BASE/scratch/\$SLURM_JOB_ID"
EPILOG
chmod 755 "$BASE/bin/task-prolog" "$BASE/bin/epilog"
cat >"$BASE/env.sh" <<ENV
export SLURM_CONF=$SLURM_CONF
export PATH=$BASE/bin:\$PATH
ENV

( umask 077; dd if=/dev/urandom of="$BASE/etc/munge.key" bs=128 count=1 status=none )
munged --key-file="$BASE/etc/munge.key" --socket="$BASE/run/munge.socket" --pid-file="$BASE/run/munged.pid" \
       --log-file="$BASE/log/munged.log" --seed-file="$BASE/state/munged.seed"
slurmctld -f "$SLURM_CONF"
for node in $NODES; do slurmd -N "$node" -f "$SLURM_CONF"; done

end=$((SECONDS + PATIENCE))
until [ "$(timeout 10 sinfo -h -N -o %T 2>/dev/null | sort -u)" = idle ]; do
  if [ $SECONDS -ge $end ]; then
    echo "SLURM did not start within $PATIENCE s" >&2
    tail -n 20 "$BASE"/log/*.log >&2
    exit 1
  fi
  sleep 0.2
done
