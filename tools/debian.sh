#!/usr/bin/env bash
# Installs Debian packages that are missing, by name. Each argument is PACKAGE:REASON.
# On a host without apt-get it only says what is needed.
set -euo pipefail

missing=()
for argument in "$@"; do
  package=${argument%%:*}
  if command -v dpkg-query >/dev/null; then
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] && continue
    echo "installing Debian package $package (${argument#*:})"
  fi
  missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "this is not Debian: the tools of these Debian packages are needed: ${missing[*]}" >&2
  exit 0
fi
if [ "$(id -u)" != 0 ]; then
  echo "run as root, or install these packages first: ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { apt-get install -y -q --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1; }
# The package lists may be missing or older than the archive.
install || { apt-get update -q </dev/null >"$log" 2>&1 && install; } || {
  cat "$log" >&2
  echo "apt-get could not install ${missing[*]}: if this host needs a proxy, set http_proxy; offline, install them by other means" >&2
  exit 1
}
