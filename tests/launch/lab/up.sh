#!/usr/bin/env bash
# A real Slurm cluster of $NODES machines on this one, under the folder $LAB: each machine is a set of namespaces of its
# own (network, host name, processes, mounts, /dev/shm) with slurmd and sshd inside, joined by a bridge.
# Afterwards: `. $LAB/env`, `$LAB/on n2 CMD` runs on a machine, `$LAB/ssh n2 CMD` is real ssh, `$LAB/poweroff n2` pulls its
# plug, `$LAB/link n2 down|up` its cable. Taken down by down.sh, or by itself when the process $WATCH is gone.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
: "${LAB:?a short path: unix sockets lie below it}" "${P:=dl}" "${NET:=10.77.0}" "${PORT:=26817}" "${NODES:=3}" "${CPUS:=4}"
here=$(dirname "$(readlink -f "$0")"); host=$(hostname); me=$(id -un)
mkdir -p "$LAB"/{etc,run,log,state,spool,tmp}
export SLURM_CONF=$LAB/etc/slurm.conf
echo "export SLURM_CONF=$SLURM_CONF" > "$LAB/env"
trap 'rc=$?; [ $rc = 0 ] || { tail -n 5 "$LAB"/log/* >&2 || true; "$here/down.sh" || true; }' EXIT

# Slurm's pmix plugin opens libpmix.so, a name that only the development package has.
for d in /usr/lib/*/pmix2/lib; do
  [ -e "$d/libpmix.so.2" ] && [ ! -e "$d/libpmix.so" ] && [ -w "$d" ] && ln -s libpmix.so.2 "$d/libpmix.so"
done; true

cat > "$SLURM_CONF" <<X
ClusterName=lab
SlurmctldHost=$host($NET.1)
SlurmctldPort=$PORT
AuthType=auth/none
CredType=cred/none
SlurmUser=$me
SlurmdUser=$me
StateSaveLocation=$LAB/state
SlurmdSpoolDir=$LAB/spool/%n
SlurmctldPidFile=$LAB/run/slurmctld.pid
SlurmdPidFile=$LAB/run/slurmd.%n.pid
SlurmctldLogFile=$LAB/log/slurmctld.log
SlurmdLogFile=$LAB/log/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TmpFS=$LAB/tmp
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
EnforcePartLimits=ALL
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
PropagateResourceLimitsExcept=ALL
ReturnToService=2
SlurmdTimeout=10
KillWait=2
NodeName=n[1-$NODES] NodeAddr=$NET.1[1-$NODES] Port=26818 CPUs=$CPUS CoresPerSocket=$CPUS RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
X
echo "LAB=$LAB P=$P" > "$LAB/params"
if [ -n "${WATCH:-}" ]; then
  LAB=$LAB setsid sh -c 'tail --pid="$1" -f /dev/null; exec "$2"' sh "$WATCH" "$here/down.sh" </dev/null >/dev/null 2>&1 &
fi

{ echo "127.0.0.1 localhost"; echo "$NET.1 $host"; for k in $(seq "$NODES"); do echo "$NET.1$k n$k"; done; } > "$LAB/etc/hosts"
ssh-keygen -q -t ed25519 -N '' -f "$LAB/etc/id"
ssh-keygen -q -t ed25519 -N '' -f "$LAB/etc/hostkey"
cp "$LAB/etc/id.pub" "$LAB/etc/authorized_keys"
cat > "$LAB/etc/sshd_config" <<X
HostKey $LAB/etc/hostkey
AuthorizedKeysFile $LAB/etc/authorized_keys
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
PrintMotd no
MaxStartups 100
X
cat > "$LAB/etc/ssh_config" <<X
Host *
  IdentityFile $LAB/etc/id
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
  BatchMode yes
  ConnectTimeout 5
X
for k in $(seq "$NODES"); do printf 'Host n%s\n  HostName %s.1%s\n' "$k" "$NET" "$k"; done >> "$LAB/etc/ssh_config"
printf '#!/bin/sh\nexec ssh -F %s "$@"\n' "$LAB/etc/ssh_config" > "$LAB/ssh"; chmod +x "$LAB/ssh"
mkdir -p /run/sshd

# The switch: a bridge in a network namespace of its own, which the machine's firewall does not see.
setsid unshare --net --fork --kill-child=KILL sleep infinity </dev/null >/dev/null 2>&1 &
echo $! > "$LAB/run/switch.unshare"
child() { local p; for _ in $(seq 300); do p=$(pgrep -P "$1") && break; sleep 0.01; done; echo "$p"; }
sw=$(child "$(cat "$LAB/run/switch.unshare")")
nsenter -t "$sw" -n sh -c 'ip link set lo up; ip link add br0 type bridge; ip link set br0 up'
ip link add "${P}h" type veth peer name host0 netns "$sw"
nsenter -t "$sw" -n ip link set host0 master br0 up
ip addr add "$NET.1/24" dev "${P}h"; ip link set "${P}h" up

cat > "$LAB/etc/init" <<'X'
#!/bin/bash
# Process 1 of a machine; arguments: the lab's folder, the machine's name.
LAB=$1 N=$2
hostname "$N"
echo $(( ${N#n} * 3000 )) > /proc/sys/kernel/ns_last_pid   # Open MPI names its /tmp files by process id: keep them apart
mount --bind "$LAB/etc/hosts" /etc/hosts
mount -t tmpfs -o size=256m,mode=1777 tmpfs /dev/shm
mount -t tmpfs -o size=256m,mode=1777 tmpfs "$LAB/tmp"
# bash runs ~/.bashrc in each ssh session. What a user has there costs time and waits for locks of its own (pyenv's for a
# minute, once a session was killed that held it): the machines' users have none.
for file in ~/.bashrc ~/.bash_profile ~/.profile /etc/bash.bashrc; do [ ! -e "$file" ] || mount --bind /dev/null "$file"; done
until [ -e "$LAB/run/$N.go" ]; do sleep 0.02; done
env -u SLURM_CONF /usr/sbin/sshd -f "$LAB/etc/sshd_config" -o PidFile="$LAB/run/sshd.$N.pid" -E "$LAB/log/sshd.$N.log"
mkdir -p "$LAB/spool/$N"
slurmd
trap 'exit 0' TERM
while :; do sleep 3600 & wait $!; done
X
cat > "$LAB/poweron" <<X
#!/bin/bash
# Boot machines: poweron n1 n2
child() { local p; for _ in \$(seq 300); do p=\$(pgrep -P "\$1") && break; sleep 0.01; done; echo "\$p"; }
for n; do
  rm -f $LAB/run/\$n.go $LAB/run/slurmd.\$n.pid
  setsid unshare --mount --uts --ipc --net --pid --fork --kill-child=KILL --mount-proc --propagation private \\
    bash $LAB/etc/init $LAB \$n </dev/null >>$LAB/log/init.\$n.log 2>&1 &
  echo \$! > $LAB/run/\$n.unshare
done
for n; do
  p=\$(child "\$(cat $LAB/run/\$n.unshare)"); echo "\$p" > $LAB/run/\$n.init
  # Always the same address: others keep a machine's for half a minute, and would speak to the one that is gone.
  mac=02:00:00:00:00:\$(printf %02x \${n#n})
  nsenter -t $sw -n sh -c "ip link del \$n 2>/dev/null
    ip link add \$n type veth peer name eth0 address \$mac netns \$p; ip link set \$n master br0 up"
  nsenter -t "\$p" -n sh -c "ip link set lo up; ip addr add $NET.1\${n#n}/24 dev eth0; ip link set eth0 up"
  : > $LAB/run/\$n.go
done
X
cat > "$LAB/mend" <<X
#!/bin/bash
# Have machine \$1 working again, whatever was done to it, and everybody know it.
if grep -q "^State:.[^Z]" "/proc/\$(cat $LAB/run/\$1.unshare)/status" 2>/dev/null; then $LAB/link \$1 up; else $LAB/poweron \$1; fi
exec $LAB/ready \$1
X
cat > "$LAB/ready" <<X
#!/bin/bash
# Return when all the machines named do work: ssh answers, from here and from the others, and Slurm runs a job there.
wait_for() {
  until "\$@" >/dev/null 2>&1; do [ \$SECONDS -lt 100 ] || { echo "not so after 100 s: \$*" >&2; exit 1; }; sleep 0.1; done
}
runs_jobs() {
  [ "\$(timeout 5 sinfo -h -n \$1 -o %T)" = idle ] || timeout 5 scontrol update NodeName=\$1 State=RESUME
  timeout 10 srun -Q -w \$1 --input=none true
}
for n; do
  wait_for timeout 5 $LAB/ssh \$n true &
  for other in $(seq -s ' ' -f n%g "$NODES"); do
    [ \$other = \$n ] || wait_for timeout 5 $LAB/on \$other $LAB/ssh \$n true &
  done
  wait_for runs_jobs \$n &
done
for job in \$(jobs -p); do wait \$job || exit 1; done
X
cat > "$LAB/poweroff" <<X
#!/bin/bash
# Pull the plug of machine \$1; return when nothing of it lives.
pids="\$(cat $LAB/run/\$1.unshare $LAB/run/\$1.init)"
kill -9 \${pids%%[^0-9]*}
for p in \$pids; do while grep -q "^State:.[^ZX]" /proc/\$p/status 2>/dev/null; do sleep 0.01; done; done
X
printf '#!/bin/sh\nexec nsenter -t %s -n ip link set "$1" "$2"\n' "$sw" > "$LAB/link"
printf '#!/bin/sh\nn=$1; shift\nexec nsenter -t "$(cat %s/run/$n.init)" -m -u -i -n -p -- "$@"\n' "$LAB" > "$LAB/on"
chmod +x "$LAB/poweron" "$LAB/poweroff" "$LAB/link" "$LAB/on" "$LAB/mend" "$LAB/ready"
slurmctld   # before the machines: a slurmd that finds no controller sleeps for a second
"$LAB/poweron" $(seq -f n%g "$NODES")

"$LAB/ready" $(seq -f n%g "$NODES")
