#!/bin/sh
# changed.sh prints the extra targets that a change needs in CI, one a line. The change is the difference of the working
# tree from $CI_BASE, else from the published main, else from the newest commit that is older than a day. Without an earlier
# commit every file counts as changed.
set -eu
cd "$(dirname "$0")/.."

base() {
	if [ -n "${CI_BASE:-}" ]; then
		git rev-parse --verify --quiet "$CI_BASE^{commit}"
		return
	fi
	main=$(git merge-base HEAD refs/remotes/origin/main 2>/dev/null || true)
	if [ -n "$main" ] && [ "$main" != "$(git rev-parse HEAD)" ]; then
		echo "$main"
		return
	fi
	git rev-list -1 --before='1 day ago' HEAD
}

from=$(base || true)
if [ -n "$from" ] && [ "$from" != "$(git rev-parse HEAD)" ]; then
	files=$(git diff --name-only "$from" && git ls-files --others --exclude-standard)
else
	files=$(git ls-files)
fi

# "make test" already ran the tests without a build tag, except those of docs and of service/neighbours.
relevant=$(echo "$files" | while IFS= read -r file; do
	case $file in
	docs/* | service/neighbours/*) ;;
	*_test.go) grep -qs '^//go:build' "$file" || continue ;;
	esac
	echo "$file"
done)

# needs TARGET PATTERN: prints the target if a file matches.
needs() {
	if echo "$relevant" | grep -qE "$2|^Makefile$|^\.ci/run$|^tools/require\.sh$"; then
		echo "$1"
	fi
}

needs test-newest '^(repo|service)/|^go\.mod$|^tools/postgres\.sh$'
needs test-docs '^(cli|config|server|service)/|^devdb/[^/]*\.(go|sql)$|^README\.md$|^docs/(.*\.md|[a-z]*_test\.go)$'
needs test-neighbours '^service/neighbours/'
needs test-web '^web/'
needs test-jaeger '^telemetry/|^(service/run|repo/internal/pg)/tracing|^repo/spans/|^service/run/spans/|^tools/jaeger/|^cli/.*_test\.go$|^go\.mod$'
needs test-prometheus '^telemetry/|^service/(run/)?metrics|^deploy/(prometheus|grafana)/|^cli/.*_test\.go$|^go\.mod$'
needs test-clients '^proto/|^docs/clients'
needs test-packages '^deploy/packages|^tools/release'
needs test-deploy '^deploy/(kubernetes|compose)/|^compose\.yaml$|^Dockerfile$|^tools/(deploy|dependencies)/'
needs bench-once '^bench/'
