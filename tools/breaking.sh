#!/bin/sh
# Compares the API with the published one: that of the branch main and that of the last release.
# Each is exported with git archive, which needs no network and works in every kind of clone.
set -eu
cd "$(dirname "$0")/.."

# has_proto REVISION: true when the revision is at hand and holds proto files.
has_proto() {
	git rev-parse --quiet --verify "$1^{commit}" >/dev/null &&
		[ -n "$(git ls-tree -r --name-only "$1" -- proto | grep '\.proto$')" ]
}

# main_revision prints where main is: the published one, the local one, or the remote's
# when this clone was made of another branch alone.
main_revision() {
	for revision in refs/remotes/origin/main refs/heads/main; do
		if git rev-parse --quiet --verify "$revision^{commit}" >/dev/null; then
			echo "$revision"
			return
		fi
	done
	if git fetch --quiet --depth=1 origin main 2>/dev/null; then
		git rev-parse FETCH_HEAD
		return
	fi
	echo "main is neither in this clone nor at origin; comparing with the last commit" >&2
	echo HEAD
}

compare() {
	if ! has_proto "$1"; then
		echo "buf breaking: skipped against $1, which holds no proto files yet"
		return
	fi
	earlier=$(mktemp -d)
	trap 'rm -rf "$earlier"' EXIT
	git archive --output="$earlier/proto.tar" "$1" proto
	tar -xf "$earlier/proto.tar" -C "$earlier"
	go tool -modfile=tools/buf/go.mod buf breaking proto --config buf.yaml --against "$earlier/proto"
	rm -rf "$earlier"
	echo "buf breaking: nothing breaks against $1"
}

compare "$(main_revision)"
release=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || true)
if [ -n "$release" ]; then
	compare "$release"
fi
