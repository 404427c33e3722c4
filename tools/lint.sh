#!/usr/bin/env bash
# The linters, after `tools/build.sh lint`. Everything is run before the result is told.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0
fail() {
  echo "lint: $*" >&2
  failed=1
}

mapfile -t packages < <(go list work)
[ ${#packages[@]} -gt 0 ] || fail "go list work"
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.go' | grep -v '\.pb\.go$' | grep -v '\.pb\.gw\.go$' | xargs -r ls -d 2>/dev/null)

go vet "${packages[@]}" || fail "go vet"
staticcheck "${packages[@]}" || fail "staticcheck"
# What only the tests with Docker compile.
{ go vet -tags compose ./test/compose && staticcheck -tags compose ./test/compose; } || fail "test/compose"
unformatted=$(gofumpt -l "${files[@]}") || fail "gofumpt"
[ -z "$unformatted" ] || fail "not formatted with gofumpt: $unformatted"

# Nothing may be skipped: a test that cannot run fails.
skips=$(grep -nE '\b[a-z]+\.(Skip|Skipf|SkipNow)\(|testing\.Short\(' -- $(printf '%s\n' "${files[@]}" | grep -E '(_test\.go$|^internal/testkit/|^test/)')) && fail "tests must not skip:"$'\n'"$skips"
# Words of unfinished work.
unfinished=$(grep -nE '\b(TODO|FIXME|XXX)\b' -- "${files[@]}") && fail "unfinished:"$'\n'"$unfinished"
for script in .ci/run tools/*.sh test/compose/*.sh test/vm/*.sh; do
  bash -n "$script" || fail "$script"
done

# The database of vulnerabilities is on the network.
if curl -sf -m 10 -o /dev/null https://vuln.go.dev/index/modules.json 2>/dev/null; then
  govulncheck "${packages[@]}" || fail "govulncheck"
else
  echo "govulncheck did not run: vuln.go.dev cannot be reached"
fi
exit $failed
