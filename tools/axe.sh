#!/bin/sh
# Prints the path of axe-core, which checks the accessibility of the status page. npm fetches the release below once into
# a cache outside the repository.
set -eu
release=4.14.1
cache=${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/caretaker/axe-core
file=$cache/$release/package/axe.min.js
if [ ! -f "$file" ]; then
	command -v npm >/dev/null || "$(dirname "$0")/require.sh" npm >&2
	echo "axe: fetching axe-core $release into $cache" >&2
	rm -rf "$cache/$release.new" && mkdir -p "$cache/$release.new"
	(cd "$cache/$release.new" && npm pack --silent "axe-core@$release" >&2 && tar -xzf "axe-core-$release.tgz")
	rm -rf "${cache:?}/$release" && mv "$cache/$release.new" "$cache/$release"
fi
echo "$file"
