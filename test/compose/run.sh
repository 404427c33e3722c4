#!/usr/bin/env bash
# Runs the tests of deploy/ with a Docker of their own: dockerd in a network namespace, with a data directory that goes afterwards.
# Nothing of the host's Docker, bridges or firewall is touched but one masquerade rule and two forward rules, which go too. The host forwards
# packets from then on.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$root/.local/compose
[ "$(id -u)" = 0 ] || { echo "the tests run dockerd: run them as root" >&2; exit 1; }

# Packages that bring a service must not start it here.
policy=/usr/sbin/policy-rc.d
policy_made=
if [ ! -e "$policy" ]; then
  policy_made=yes
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod +x "$policy"
fi
"$root/tools/debian.sh" "docker.io:dockerd" "debootstrap:base images" "prometheus:metrics" "iproute2:network namespaces" "iptables:addresses for containers"
"$root/test/compose/standins.sh" build

# A name and a subnet for this run; runs beside each other must not meet.
id=$((RANDOM % 250 + 1))
name=ppdk$id
net=172.29.$id
dir=$(mktemp -d /tmp/ppdk.XXXX)
log=$dir/dockerd.log
docker=(/usr/bin/docker -H "unix://$dir/docker.sock")
mkdir "$dir/cli-plugins"
ln -s "$out/bin/docker-compose" "$dir/cli-plugins/docker-compose"

rules() { # add or remove
  local a=-I; [ "$1" = add ] || a=-D
  iptables -w 10 -t nat $a POSTROUTING -s "$net.0/30" ! -o "$name" -j MASQUERADE
  iptables -w 10 $a FORWARD -i "$name" -j ACCEPT
  iptables -w 10 $a FORWARD -o "$name" -j ACCEPT
}

cleanup() {
  local code=$?
  trap - EXIT
  set +e
  if [ -n "${daemon:-}" ]; then
    if [ "$code" != 0 ]; then tail -n 20 "$log" >&2; fi
    # shellcheck disable=SC2046
    "${docker[@]}" rm -f $("${docker[@]}" ps -aq 2>/dev/null) >/dev/null 2>&1
    kill "$daemon" && wait "$daemon"
  fi
  # Whatever a killed container left is in cgroups of its own.
  find /sys/fs/cgroup -depth -type d -path "*/podplane-test-$id*" -exec rmdir {} + 2>/dev/null
  # dockerd leaves its own empty ones; those in use stay.
  find /sys/fs/cgroup -mindepth 1 -maxdepth 2 -type d -name docker -exec rmdir {} + 2>/dev/null
  rules remove 2>/dev/null
  ip link delete "$name" 2>/dev/null
  ip netns delete "$name" 2>/dev/null
  rm -rf "$dir"
  if [ -n "$policy_made" ]; then rm -f "$policy"; fi
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

ip netns add "$name"
ip link add "$name" type veth peer name eth0 netns "$name"
ip addr add "$net.1/30" dev "$name"
ip link set "$name" up
ip -n "$name" link set lo up
ip -n "$name" addr add "$net.2/30" dev eth0
ip -n "$name" link set eth0 up
ip -n "$name" route add default via "$net.1"
rules add
echo 1 > /proc/sys/net/ipv4/ip_forward

# Mounts of its own, so that none is left, and the host's stay out of reach; shared, as systemd makes a host's.
nsenter --net="/run/netns/$name" unshare --mount sh -c 'mount --make-rshared / && exec "$@"' sh /usr/sbin/dockerd --data-root "$dir/data" --exec-root "$dir/exec" \
  -H "unix://$dir/docker.sock" --pidfile "$dir/pid" > "$log" 2>&1 &
daemon=$!
for _ in $(seq 150); do
  "${docker[@]}" version >/dev/null 2>&1 && break
  kill -0 "$daemon" 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.2
done
echo "loading stand-ins for base images"
"$root/test/compose/standins.sh" load "${docker[@]}"

cd "$root"
go test -c -race -tags compose -o "$dir/compose.test" ./test/compose
cd test/compose
# How full this host's disk is, is not what is tested.
export PODPLANE_EVICTION_HARD='memory.available<100Mi'
DOCKER_HOST=unix://$dir/docker.sock DOCKER_BUILDKIT=0 DOCKER_CONFIG=$dir PODPLANE_CGROUP=/podplane-test-$id DOCKERD=$daemon \
  nsenter --net="/run/netns/$name" "$dir/compose.test" -test.v -test.timeout "${TIMEOUT:-20m}" "$@"
