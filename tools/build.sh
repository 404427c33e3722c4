#!/usr/bin/env bash
# Builds the tools of the named modules under tools/ into .local/bin. A stamp of go.mod and go.sum makes a second run cheap.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/.local/bin
stamps=$root/.local/stamps
mkdir -p "$bin" "$stamps"

for module in "$@"; do
  stamp=$stamps/$module
  want=$(cat "$root/tools/$module/go.mod" "$root/tools/$module/go.sum" "${BASH_SOURCE[0]}" | sha256sum)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    continue
  fi
  echo "building tools/$module"
  (cd "$root/tools/$module" && GOWORK=off GOFLAGS=-mod=readonly GOBIN=$bin go install tool)
  echo "$want" > "$stamp"
done
