#!/usr/bin/env bash
# Workers of one queue, as an array job of SLURM: as many as --array says, each until its time is nearly up, then
# again (requeue), until the queue has nothing left.
#
#   export LAKESHORE_URL=https://cp.example.com LAKESHORE_QUEUE=gpu
#   sbatch --array=1-8 --time=08:00:00 --gres=gpu:1 deploy/slurm/workers.sh --allow-pickled
#
# Arguments go to `lakeshore worker start`. The environment says the rest:
#   LAKESHORE_TOKEN_FILE  a file with a worker's token           (~/.config/lakeshore/worker-token)
#   LAKESHORE_VENV        a virtual environment with lakeshore   (none: what is on the PATH)
#   LAKESHORE_MODULES     modules to load first                  (none)
#   LAKESHORE_SCRATCH     where jobs read and write              (SLURM_TMPDIR, TMPDIR or /tmp, removed at the end)
#   LAKESHORE_GRACE       seconds for a running job at the end   (600; --signal below is 60 more)
#   LAKESHORE_IDLE        leave once nothing was queued or running for so many seconds   (300; 0: stay)
#
#SBATCH --job-name=lakeshore
#SBATCH --array=1-4
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@660
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=lakeshore-%A_%a.log
set -euo pipefail

: "${LAKESHORE_URL:?says where the control plane is}"
: "${LAKESHORE_QUEUE:?says which queue}"
token_file=${LAKESHORE_TOKEN_FILE:-$HOME/.config/lakeshore/worker-token}
grace=${LAKESHORE_GRACE:-600}
idle=${LAKESHORE_IDLE:-300}
unset LAKESHORE_CLIENT_TOKEN # sbatch carries the environment of who submitted along

say() { printf '%s %s\n' "$(date '+%F %T')" "$*" >&2; }

if [ -n "${LAKESHORE_MODULES:-}" ]; then
  read -ra modules <<<"$LAKESHORE_MODULES"
  module load "${modules[@]}"
fi
if [ -n "${LAKESHORE_VENV:-}" ]; then
  export PATH="$LAKESHORE_VENV/bin:$PATH"
fi

scratch=$(mktemp -d "${LAKESHORE_SCRATCH:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}}/lakeshore-XXXXXX")
export LAKESHORE_HOME=$scratch/home # not in the home directory, which a hundred nodes share
worker='' watch='' ended_by=''

# SLURM signals this script (B:). It tells the supervisor once, which tells the workers: no new job, and the running
# one gets its grace, then goes back to the queue unharmed.
# shellcheck disable=SC2317,SC2329 # by the traps
drain() {
  if [ -z "$ended_by" ]; then
    ended_by=$1
    say "drains: $1"
    [ -z "$worker" ] || kill -TERM "$worker" 2>/dev/null || true
  fi
}
trap 'drain "the time is nearly up"' USR1
trap 'drain "told to stop"' TERM INT
trap 'drain "nothing is left to do"' USR2
trap '[ -z "$watch" ] || kill "$watch" 2>/dev/null || true; rm -rf "$scratch"' EXIT

# Print how many jobs the queue has, waiting and running.
left() {
  lakeshore queues --json --token-file "$token_file" | python3 -c '
import json, os, sys
states = json.load(sys.stdin).get(os.environ["LAKESHORE_QUEUE"], {})
print(states.get("queued", 0) + states.get("running", 0))'
}

watch_queue() {
  local step=$((idle < 30 ? idle : 30)) quiet=0 jobs pause=''
  trap 'kill "$pause" 2>/dev/null; exit' TERM
  while [ "$quiet" -lt "$idle" ]; do
    sleep "$step" &
    pause=$!
    wait "$pause"
    if jobs=$(left 2>/dev/null) && [ "$jobs" = 0 ]; then
      quiet=$((quiet + step))
    else
      quiet=0
    fi
  done
  kill -USR2 $$
}

lakeshore worker start --queue "$LAKESHORE_QUEUE" --token-file "$token_file" --root "$scratch" \
  --grace "$grace" "$@" &
worker=$!
[ -z "$ended_by" ] || kill -TERM "$worker" # the signal came first
if [ "$idle" -gt 0 ]; then
  watch_queue &
  watch=$!
fi

code=0
while kill -0 "$worker" 2>/dev/null; do # a signal ends `wait` early, with its own code
  code=0
  wait "$worker" || code=$?
done

if [ "$ended_by" = "the time is nearly up" ] && [ -n "${SLURM_JOB_ID:-}" ]; then
  if jobs=$(left) && [ "$jobs" = 0 ]; then
    say "nothing is left: not queued again"
  else
    say "goes on in another allocation"
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit "$code"
