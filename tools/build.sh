#!/usr/bin/env bash
# Builds the tools of the named modules under tools/. A stamp of what a build depends on makes a second run cheap.
# The CNI plugins go to .local/cni/bin, everything else to .local/bin.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
stamps=$root/.local/stamps
mkdir -p "$stamps"

# required_version prints the version at which a tool module pins another module.
required_version() { # module path
  awk -v path="$2" '$1 == path || $2 == path {for (i = 1; i <= NF; i++) if ($i ~ /^v[0-9]/) print $i}' "$root/tools/$1/go.mod" | head -n 1
}

build() { # module
  local module=$1 bin=$root/.local/bin cgo=0 tags="" ldflags="-s -w" started=$SECONDS stamp=$stamps/$1 want
  want=$(cat "$root/tools/$module/go.mod" "$root/tools/$module/go.sum" "${BASH_SOURCE[0]}" | sha256sum)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    return
  fi
  case $module in
    containerd)
      ldflags+=" -X github.com/containerd/containerd/v2/version.Version=$(required_version containerd github.com/containerd/containerd/v2)"
      tags="no_btrfs no_devmapper no_zfs"
      ;;
    runc)
      cgo=1
      tags="seccomp"
      ldflags+=" -X main.version=$(required_version runc github.com/opencontainers/runc | sed 's/^v//')"
      ;;
    cni)
      bin=$root/.local/cni/bin
      ldflags+=" -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=$(required_version cni github.com/containernetworking/plugins)"
      ;;
  esac
  echo "building tools/$module"
  mkdir -p "$bin"
  if ! (cd "$root/tools/$module" && GOWORK=off GOFLAGS="-mod=readonly -buildvcs=false -trimpath" CGO_ENABLED=$cgo GOBIN=$bin \
    go install -tags "$tags" -ldflags "$ldflags" tool); then
    echo "tools/$module did not build: if modules could not be downloaded, set GOPROXY or HTTPS_PROXY to a proxy that this host reaches" >&2
    return 1
  fi
  echo "$want" > "$stamp"
  echo "built tools/$module in $((SECONDS - started)) s"
}

for module in "$@"; do
  build "$module"
done
