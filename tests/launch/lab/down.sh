#!/usr/bin/env bash
# Take the lab in $LAB down: only what up.sh started there, by its recorded process ids. May be called again.
set -u
PATH=$PATH:/usr/sbin:/sbin
[ -e "$LAB/params" ] || exit 0
. "$LAB/params"
pids=()
end() {   # end FILE NAME: kill the process whose id FILE holds, if it still is NAME
  local p; [ -s "$1" ] || return 0
  p=$(cat "$1")
  if [ -r "/proc/$p/cmdline" ] && tr '\0' ' ' < "/proc/$p/cmdline" | grep -q -- "$2"; then kill -9 "$p"; pids+=("$p"); fi
}
live() { local s; s=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) && [ "${s%% *}" != Z ]; }
for f in "$LAB"/run/*.unshare; do end "$f" unshare; done   # process 1 of a machine dies, and the kernel ends all of it
end "$LAB/run/slurmctld.pid" slurmctld
for _ in $(seq 250); do
  alive=0; for p in "${pids[@]:-}"; do [ -n "$p" ] && live "$p" && alive=1; done
  [ $alive = 0 ] && break; sleep 0.02
done
ip link del "${P}h" 2>/dev/null
rm -rf "$LAB"
