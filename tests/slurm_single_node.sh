#!/usr/bin/env bash
# A real Slurm on this one machine for tests/cluster/test_slurm.py: loopback, fake nodes, no systemd, no cgroups.
#   slurm_single_node.sh up [N]   start munged, slurmctld and N slurmd (default 2 nodes) and wait until they answer
#   slurm_single_node.sh env      print the line a client evaluates
#   slurm_single_node.sh down     end what was started here, by process id, in bounded time
# Needs root and the Debian packages slurm-wlm and munge (Slurm 22.05); installs nothing. State lies in SLURM_SN_DIR,
# which the user munge must be able to enter; SLURM_SN_PORT and the N + 1 ports after the next are used.
set -euo pipefail
BASE=${SLURM_SN_DIR:?a folder for its state}
CTLPORT=${SLURM_SN_PORT:-16817}
export SLURM_CONF=$BASE/slurm.conf
HOST=$(hostname -s)
# The daemons bind to what the host's own name resolves to (NoInAddrAny): it must resolve, best to loopback.
addr() { getent ahostsv4 "$HOST" 2>/dev/null | awk 'NR==1{print $1}' || true; }

# A pid counts as ours only if it lives, is no zombie (a container's pid 1 may never reap) and has the expected name.
ours() { local p; p=$(cat "$1" 2>/dev/null) && [ -n "$p" ] && [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "$2" ] && ! grep -q '^State:.Z' "/proc/$p/status" 2>/dev/null; }
stop1() {  # pid file, name: TERM, wait up to 10 s, KILL
  local i
  ! ours "$1" "$2" || kill "$(cat "$1")" 2>/dev/null || true
  for i in $(seq 50); do ours "$1" "$2" || break; sleep .2; done
  ! ours "$1" "$2" || kill -9 "$(cat "$1")" 2>/dev/null || true
  rm -f "$1"
}

start_munge() {
  # own key, own socket: the machine's /etc/munge stays as it is.  munged insists: key 0600 and its dir 0700,
  # owned by the user that munged runs as; socket dir 0755 (or more) so that clients get in.
  install -d -o munge -g munge -m 0755 "$BASE/munge"
  install -d -o munge -g munge -m 0700 "$BASE/munge/private"
  if [ ! -s "$BASE/munge/private/key" ]; then
    (umask 077; head -c 128 /dev/urandom >"$BASE/munge/private/key"); chown munge:munge "$BASE/munge/private/key"; chmod 0600 "$BASE/munge/private/key"
  fi
  ours "$BASE/munge/munged.pid" munged || { rm -f "$BASE/munge/socket"*;
    setpriv --reuid=munge --regid=munge --clear-groups munged --key-file="$BASE/munge/private/key" --socket="$BASE/munge/socket" \
      --pid-file="$BASE/munge/munged.pid" --log-file="$BASE/munge/private/munged.log" --seed-file="$BASE/munge/private/seed"; }
  timeout 10 munge -S "$BASE/munge/socket" -n | timeout 10 unmunge -S "$BASE/munge/socket" >/dev/null
}

write_conf() {  # $1 = number of fake nodes
  local n=$1 cpus mem i ip
  ip=$(addr)
  case $ip in 127.*) ;; *) echo "note: $HOST resolves to $ip, so Slurm listens there and not on loopback" >&2;; esac
  # slurmd -C needs no slurm.conf; take what it detects, so that the node is not drained for 'Low RealMemory'
  cpus=$(nproc); mem=$(( $(awk '/MemTotal/{print int($2/1024)}' /proc/meminfo) * 9 / 10 ))
  cat >"$BASE/slurm.conf" <<CONF
ClusterName=sn
SlurmctldHost=$HOST($ip)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=$CTLPORT
AuthType=auth/munge
# cred_expire: a requeued job may start again only after the old credential ran out (default 120 s -> 'BeginTime')
AuthInfo=socket=$BASE/munge/socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
# send the job's own --signal also at preemption (without it only SIGCONT+SIGTERM come)
SlurmctldParameters=preempt_send_user_signal
# a job that exits 75 ("checkpointed, give me another lease") is requeued by the controller itself
RequeueExit=75
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$BASE/jobcomp.txt
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=lease
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
StateSaveLocation=$BASE/state
SlurmdSpoolDir=$BASE/spool.%n
SlurmctldPidFile=$BASE/slurmctld.pid
SlurmdPidFile=$BASE/slurmd.%n.pid
SlurmctldLogFile=$BASE/slurmctld.log
SlurmdLogFile=$BASE/slurmd.%n.log
ReturnToService=2
KillWait=5
MinJobAge=7200
JobRequeue=1
MailProg=/bin/true
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=5,sched_min_interval=0,bf_interval=5
SlurmdTimeout=30
CONF
  # slurmd 22.05 loads a cgroup plugin even though nothing here uses it; v1 named outright needs no mount and no
  # systemd, while autodetect dies without /sys/fs/cgroup and v2 wants to own a scope (23.11+: CgroupPlugin=disabled)
  echo 'CgroupPlugin=cgroup/v1' >"$BASE/cgroup.conf"
  : >"$BASE/gres.conf"
  for i in $(seq "$n"); do
    # Gres lease:1 = "one GPU" of each fake node; a count-only gres needs no device file (so it works without a GPU)
    echo "NodeName=n$i NodeHostname=$HOST NodeAddr=$ip Port=$((CTLPORT + 1 + i)) CPUs=$cpus RealMemory=$((mem / n)) Gres=lease:1 State=UNKNOWN" >>"$BASE/slurm.conf"
    echo "NodeName=n$i Name=lease Count=1" >>"$BASE/gres.conf"
  done
  # two partitions over the same nodes: 'urgent' preempts 'render' (PreemptMode=REQUEUE, 20 s grace = SIGTERM first)
  cat >>"$BASE/slurm.conf" <<CONF
PartitionName=render Nodes=n[1-$n] Default=YES MaxTime=04:00:00 DefaultTime=00:10:00 State=UP PriorityTier=1 GraceTime=20 OverSubscribe=NO
PartitionName=urgent Nodes=n[1-$n] MaxTime=04:00:00 State=UP PriorityTier=2 PreemptMode=OFF OverSubscribe=NO
CONF
}

up() {
  local n=${1:-2} i t0; t0=$(date +%s)
  install -d -m 0755 "$BASE" "$BASE/state"
  [ -n "$(addr)" ] || echo "127.0.0.1 $HOST" >>/etc/hosts
  start_munge
  if ! { ours "$BASE/slurmctld.pid" slurmctld && timeout 10 scontrol ping 2>/dev/null | grep -q 'is UP'; }; then
    stop1 "$BASE/slurmctld.pid" slurmctld
    write_conf "$n"
    slurmctld -i -f "$SLURM_CONF"            # -i: tolerate a missing/old state file
  fi
  n=$(grep -c '^NodeName=' "$SLURM_CONF")    # a running controller keeps its own node count
  for i in $(seq "$n"); do install -d -m 0755 "$BASE/spool.n$i"; ours "$BASE/slurmd.n$i.pid" slurmd || slurmd -N "n$i" -f "$SLURM_CONF"; done
  for i in $(seq 60); do
    [ "$(timeout 10 sinfo -h -N -p render -r -t idle,mix,alloc -o %N 2>/dev/null | sort -u | wc -l)" -eq "$n" ] && { echo "up: $n node(s) responding after $(( $(date +%s) - t0 )) s"; return 0; }
    sleep .5
  done
  echo "not up after 30 s; see $BASE/*.log" >&2; tail -5 "$BASE"/*.log >&2; return 1
}

down() {
  local f
  [ -e "$SLURM_CONF" ] || return 0
  if ours "$BASE/slurmctld.pid" slurmctld; then timeout 10 squeue -h -o %A 2>/dev/null | xargs -r timeout 20 scancel 2>/dev/null || true; sleep 1; fi
  for f in "$BASE"/slurmd.*.pid; do [ ! -e "$f" ] || stop1 "$f" slurmd; done
  stop1 "$BASE/slurmctld.pid" slurmctld; stop1 "$BASE/munge/munged.pid" munged
}

case ${1:-} in
  up) shift; up "$@";;
  env) echo "export SLURM_CONF=$SLURM_CONF";;
  down) down;;
  *) sed -n 2,7p "$0"; exit 2;;
esac
