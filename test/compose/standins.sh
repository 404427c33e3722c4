#!/usr/bin/env bash
# Makes stand-ins for the base images that deploy/ names, for hosts that reach no registry: Debian's packages and what Go modules hold.
# The Dockerfile and the compose files are not changed for it. What was made is kept in .local/compose, so that a second run is quick.
#   standins.sh build            makes the archives and the programs
#   standins.sh load DOCKER...   imports them; DOCKER is the docker command with its options
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$root/.local/compose
mkdir -p "$out/bin"

# image prints the full name of the base image that a file under deploy/ names, such as golang:1.26.8-bookworm.
image() { # name
  grep -rhoE "(^FROM|image:) *\"?$1:[^ \"]+" "$root/deploy/Dockerfile" "$root/deploy/compose.yaml" | awk '{print $2}' | tr -d '"' | sort -u | head -n 1
}

# stamped runs a step unless what it depends on is as it was.
stamped() { # name dependency command...
  local name=$1 want=$2
  shift 2
  [ "$(cat "$out/$name.stamp" 2>/dev/null || true)" = "$want" ] && return
  echo "making $name"
  local started=$SECONDS
  "$@"
  echo "$want" > "$out/$name.stamp"
  echo "made $name in $((SECONDS - started)) s"
}

packages=ca-certificates,iptables,iproute2,gcc,libc6-dev,libseccomp-dev,pkg-config,busybox-static,git

base() {
  rm -rf "$out/rootfs"
  debootstrap --variant=minbase --include=$packages bookworm "$out/rootfs" http://deb.debian.org/debian > "$out/debootstrap.log" || { tail -n 20 "$out/debootstrap.log" >&2; return 1; }
  tar -C "$out/rootfs" -cf "$out/base.tar" .
  rm -rf "$out/rootfs"
}

programs() {
  local tool module name package
  for tool in "compose docker-compose github.com/docker/compose/v2/cmd" "nats nats-server github.com/nats-io/nats-server/v2"; do
    read -r module name package <<< "$tool"
    (cd "$root/tools/$module" && GOWORK=off CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false -trimpath" \
      go build -ldflags "-s -w" -o "$out/bin/$name" "$package")
  done
  "$root/tools/build.sh" jaeger
}

# caches does what the Dockerfile does, with caches of its own, which the stand-in for golang brings along (toolchain).
caches() {
  export GOCACHE=$out/go/cache GOMODCACHE=$out/go/mod GOPROXY
  GOPROXY=file://$(GOMODCACHE='' go env GOMODCACHE)/cache/download,$(go env GOPROXY)
  export GOFLAGS=-modcacherw
  local copy=$out/src
  rm -rf "$copy"
  mkdir -p "$copy"
  (cd "$root" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$copy")
  (cd "$copy" && tools/build.sh cni runc containerd && tools/images.sh &&
    CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" go build -ldflags "-s -w" -o /dev/null ./cmd/podplane)
  rm -rf "$copy"
}

# toolchain puts them on top of the base.
toolchain() {
  local goroot
  goroot=$(go env GOROOT)
  cp --reflink=auto "$out/base.tar" "$out/golang.tar"
  tar -rf "$out/golang.tar" --owner=0 --group=0 -C / --transform="s,^${goroot#/},usr/local/go," "${goroot#/}"
  tar -rf "$out/golang.tar" --owner=0 --group=0 -C "$out" --transform='s,^go/cache,root/.cache/go-build,;s,^go/mod,go/pkg/mod,' \
    --exclude=go/mod/cache/download/sumdb go/cache go/mod
}

build() {
  # Debian's packages come over the network while Go compiles.
  stamped base "bookworm $packages" base &
  local based=$! modules
  stamped programs "$(cat "$root"/tools/{compose,nats,jaeger}/go.sum | sha256sum)" programs
  modules=$(cat "$root"/tools/{cni,runc,containerd}/go.sum "$root"/{internal,proto,cmd/podplane,test}/go.sum "$root"/services/*/go.sum <(go version) | sha256sum)
  stamped caches "$modules" caches
  wait "$based"
  stamped golang "$modules$(cat "$out/base.stamp")" toolchain
}

# layered makes an image of the base and some files.
layered() { # name dockerfile-lines files...
  local name=$1 lines=$2 context
  shift 2
  context=$(mktemp -d "$out/context.XXXXXX")
  for file in "$@"; do cp -a --reflink=auto "$file" "$context/"; done
  printf 'FROM podplane-test-base\n%s\n' "$lines" > "$context/Dockerfile"
  DOCKER_BUILDKIT=0 "${docker[@]}" build -q -t "$name" "$context" >/dev/null
  rm -rf "$context"
}

load() {
  docker=("$@")
  "${docker[@]}" import "$out/base.tar" podplane-test-base >/dev/null
  "${docker[@]}" tag podplane-test-base "$(image debian)"
  layered "$(image nats)" $'COPY nats-server /usr/local/bin/nats-server\nRUN ln -s /bin/busybox /usr/local/bin/wget\nENTRYPOINT ["nats-server"]' "$out/bin/nats-server"
  layered "$(image jaegertracing/all-in-one)" $'COPY all-in-one /go/bin/all-in-one-linux\nRUN ln -s /bin/busybox /usr/local/bin/wget\nENTRYPOINT ["/go/bin/all-in-one-linux"]' "$root/.local/bin/all-in-one"
  layered "$(image prom/prometheus)" $'COPY prometheus /bin/prometheus\nRUN ln -s /bin/busybox /usr/local/bin/wget && mkdir /prometheus && chown 65534 /prometheus\nUSER 65534\nENTRYPOINT ["/bin/prometheus"]' /usr/bin/prometheus
  # The largest: the toolchain with what has been compiled already.
  "${docker[@]}" import -c "ENV GOPATH=/go GOTOOLCHAIN=local GOFLAGS=-modcacherw PATH=/go/bin:/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    "$out/golang.tar" "$(image golang)" >/dev/null
}

"$@"
