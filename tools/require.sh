#!/bin/sh
# require.sh NAME...: makes sure that what the tests and "caretaker dev" need is on this machine.
#   postgres   PostgreSQL's server programs; where they cannot be installed, caretaker downloads its own
#   compiler   a C compiler, which Go's race detector needs
#   make       make itself, for machines that only run .ci/run
# Installs with apt-get, dnf or brew, as root or by sudo without a password, and says so.
set -eu
oldest_postgres=14

say() {
	echo "require: $*"
}

# postgres_bin prints the folder of the first server programs that are new enough, if any.
# It looks where devdb looks: on PATH, then where package managers put them.
postgres_bin() {
	on_path=$(command -v postgres 2>/dev/null || true)
	for folder in "${on_path%/postgres}" $(ls -d \
		/usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/libexec/postgresql* \
		/opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin \
		/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin \
		/Applications/Postgres.app/Contents/Versions/*/bin /usr/local/pgsql/bin 2>/dev/null); do
		if [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ]; then
			major=$("$folder/postgres" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/')
			if [ "$major" -ge "$oldest_postgres" ]; then
				echo "$folder (version $major)"
				return
			fi
		fi
	done
}

# as_root runs a command as root; it fails where that is not possible without a password.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo -n "$@"
	fi
}

may_be_root() {
	[ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }
}

apt_install() {
	say "installing $* with apt-get"
	as_root apt-get -qq -o DPkg::Lock::Timeout=300 update </dev/null &&
		as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
			install --no-install-recommends "$@" </dev/null >/dev/null
}

# apt_install_postgres installs the programs alone: Debian's packages would also create and
# start a database cluster, which nobody asked for.
apt_install_postgres() {
	settings=/etc/postgresql-common/createcluster.d
	as_root mkdir -p "$settings"
	trap 'as_root rm -f "$settings/zz-caretaker.conf"' EXIT
	trap 'exit 1' INT TERM
	echo "create_main_cluster = false" | as_root tee "$settings/zz-caretaker.conf" >/dev/null
	apt_install postgresql
}

# install WHAT: false when there is no way to install it here.
install() {
	if command -v brew >/dev/null; then
		case $1 in
		postgres) say "installing postgresql@17 with brew" && brew install --quiet postgresql@17 ;;
		*) return 1 ;;
		esac
	elif ! may_be_root; then
		say "neither root nor sudo without a password: nothing can be installed"
		return 1
	elif command -v apt-get >/dev/null; then
		case $1 in
		postgres) apt_install_postgres ;;
		compiler) apt_install gcc libc6-dev ;;
		make) apt_install make ;;
		esac
	elif command -v dnf >/dev/null; then
		case $1 in
		postgres) say "installing postgresql-server with dnf" && as_root dnf -q -y install postgresql-server ;;
		compiler) say "installing gcc with dnf" && as_root dnf -q -y install gcc ;;
		make) say "installing make with dnf" && as_root dnf -q -y install make ;;
		esac
	else
		say "neither apt-get, dnf nor brew: nothing can be installed"
		return 1
	fi
}

require_postgres() {
	found=$(postgres_bin)
	if [ -z "$found" ] && install postgres; then
		found=$(postgres_bin)
	fi
	if [ -n "$found" ]; then
		say "PostgreSQL's programs are in $found"
		return
	fi
	say "no PostgreSQL $oldest_postgres or later: caretaker will download one at first use. Where it cannot reach"
	say "Maven Central, install one yourself, for example: sudo apt-get install postgresql"
}

require_compiler() {
	for name in "${CC:-gcc}" gcc clang; do
		if command -v "$name" >/dev/null; then
			return 0
		fi
	done
	# On macOS the race detector needs none.
	if [ "$(uname)" != Darwin ] && ! install compiler; then
		say "no C compiler, which the race detector needs. Install one, for example:" >&2
		say "sudo apt-get install gcc libc6-dev. Or go without the race detector: make test RACE=" >&2
		return 1
	fi
}

require_make() {
	if ! command -v make >/dev/null && ! install make; then
		say "no make. Install it, for example: sudo apt-get install make" >&2
		return 1
	fi
}

for name in "$@"; do
	case $name in
	postgres | compiler | make) "require_$name" ;;
	*) say "unknown requirement $name: postgres, compiler or make" >&2 && exit 2 ;;
	esac
done
