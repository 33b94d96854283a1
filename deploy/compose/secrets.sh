#!/usr/bin/env bash
# Make the secrets of compose.yaml, each in a file of its own; what is there already is kept.
set -euo pipefail
folder=${1:-$(dirname "${BASH_SOURCE[0]}")/secrets}
# Containers run as another user and read the files through a mount, so the files are readable and the
# folder is closed: nobody else on this machine gets to them.
mkdir -p "$folder"
chmod 700 "$folder"
cd "$folder"
umask 022

random() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }
keep() {
  if [ ! -s "$1" ]; then
    printf '%s\n' "$2" >"$1.new"
    mv "$1.new" "$1"
  fi
}

keep postgres_password "$(random)"
keep store "postgresql://lakeshore:$(cat postgres_password)@postgres/lakeshore"
for token in admin_token worker_token producer_token; do
  keep "$token" "lsk_$(random)"
done
echo "the secrets are in $folder; notebooks want producer_token"
