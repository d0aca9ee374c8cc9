#!/bin/sh
# Compares the API with the API of the branch main and of the last release.
# git archive exports both: it needs no network and works in every kind of clone.
set -eu
cd "$(dirname "$0")/.."

# has_proto REVISION reports whether the clone has the revision, with proto files.
has_proto() {
	git rev-parse --quiet --verify "$1^{commit}" >/dev/null &&
		[ -n "$(git ls-tree -r --name-only "$1" -- proto | grep '\.proto$')" ]
}

# main_revision prints the commit of main: published, local, or of the remote if this clone has only
# another branch.
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
	echo "main is missing in this clone and at origin: comparing with the last commit" >&2
	echo HEAD
}

compare() {
	if ! has_proto "$1"; then
		echo "buf breaking: skipped against $1, which has no proto files"
		return
	fi
	earlier=$(mktemp -d)
	trap 'rm -rf "$earlier"' EXIT
	git archive --output="$earlier/proto.tar" "$1" proto
	tar -xf "$earlier/proto.tar" -C "$earlier"
	go tool -modfile=tools/buf/go.mod buf breaking proto --config buf.yaml --against "$earlier/proto"
	rm -rf "$earlier"
	echo "buf breaking: compatible with $1"
}

compare "$(main_revision)"
release=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || true)
if [ -n "$release" ]; then
	compare "$release"
fi
