#!/bin/sh
# require.sh NAME... installs the requirements of the tests and of "caretaker dev".
#   postgres   PostgreSQL's server programs; if the installation fails, caretaker downloads its own
#   pgbouncer  PgBouncer, a pooler that tests put in front of PostgreSQL
#   neighbours common extensions, for the PostgreSQL that the tests start
#   prometheus Prometheus and promtool, for tests of alerts and dashboards
#   chromium   Chromium and chromedriver, for tests of the status page
#   compiler   a C compiler, which Go's race detector needs
#   npm        npm, which fetches other versions of PostgreSQL
#   faketime   optional: a library that changes the clock of a PostgreSQL
#   packages   tools for the tests of packages: a bare Debian, rpm, and systemd-analyze
#   clients    Python and Ruby with gRPC, for the examples of the documentation
#   make       make, for machines that only run .ci/run
# It installs with apt-get, dnf or brew, as root or with sudo without a password, and reports it.
set -eu
oldest_postgres=14

say() {
	echo "require: $*"
}

# postgres_bin prints the folder of the first server programs that are new enough, if any.
# Like devdb it searches PATH, then the folders of package managers.
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

# as_root runs a command as root, or fails if that needs a password.
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

# apt_install_postgres installs only the programs. Debian's packages would also create and start a
# database cluster.
apt_install_postgres() {
	settings=/etc/postgresql-common/createcluster.d
	as_root mkdir -p "$settings"
	trap 'as_root rm -f "$settings/zz-caretaker.conf"' EXIT
	trap 'exit 1' INT TERM
	echo "create_main_cluster = false" | as_root tee "$settings/zz-caretaker.conf" >/dev/null
	apt_install postgresql
}

# apt_install_pgbouncer installs only the program. Debian's package would also start it.
apt_install_pgbouncer() (
	policy=/usr/sbin/policy-rc.d
	if [ ! -e $policy ]; then
		trap 'as_root rm -f $policy' EXIT
		trap 'exit 1' INT TERM
		printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null && as_root chmod +x $policy
	fi
	apt_install pgbouncer
)

# unpacked_pgbouncer is the folder for the program if nothing can be installed. devdb also searches it.
unpacked_pgbouncer=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/caretaker/pgbouncer

# apt_unpack_pgbouncer needs no root. It unpacks Debian's package and the missing libraries.
apt_unpack_pgbouncer() {
	command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
	say "unpacking pgbouncer into $unpacked_pgbouncer"
	rm -rf "$unpacked_pgbouncer" && mkdir -p "$unpacked_pgbouncer/packages" || return 1
	(
		cd "$unpacked_pgbouncer/packages" && apt-get -qq download pgbouncer || exit 1
		for library in libevent-2.1-7 libevent-2.1-7t64 libc-ares2; do
			[ -n "$(dpkg-query -W -f '${Version}' $library 2>/dev/null)" ] || apt-get -qq download $library 2>/dev/null || :
		done
		for package in *.deb; do
			dpkg -x "$package" .. || exit 1
		done
	)
}

# apt_install_prometheus installs only the programs. Debian's package would also start a server.
apt_install_prometheus() (
	policy=/usr/sbin/policy-rc.d
	if [ ! -e $policy ]; then
		trap 'as_root rm -f $policy' EXIT
		trap 'exit 1' INT TERM
		printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null && as_root chmod +x $policy
	fi
	apt_install prometheus
)

# unpacked_prometheus is the folder for the programs if nothing can be installed. The tests also search it.
unpacked_prometheus=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/caretaker/prometheus

# apt_unpack_prometheus needs no root. Every system has the libraries of the programs.
apt_unpack_prometheus() {
	command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
	say "unpacking prometheus into $unpacked_prometheus"
	rm -rf "$unpacked_prometheus" && mkdir -p "$unpacked_prometheus/packages" || return 1
	(cd "$unpacked_prometheus/packages" && apt-get -qq download prometheus && dpkg -x prometheus_*.deb ..)
}

# install WHAT fails if this machine has no way to install it.
install() {
	if command -v brew >/dev/null; then
		case $1 in
		postgres) say "installing postgresql@17 with brew" && brew install --quiet postgresql@17 ;;
		pgbouncer) say "installing pgbouncer with brew" && brew install --quiet pgbouncer ;;
		npm) say "installing node with brew" && brew install --quiet node ;;
		chromium) say "installing chromium with brew" && brew install --quiet --cask chromium chromedriver ;;
		prometheus) say "installing prometheus with brew" && brew install --quiet prometheus ;;
		*) return 1 ;;
		esac
	elif ! may_be_root; then
		say "neither root nor sudo without a password: nothing can be installed"
		return 1
	elif command -v apt-get >/dev/null; then
		case $1 in
		postgres) apt_install_postgres ;;
		pgbouncer) apt_install_pgbouncer ;;
		prometheus) apt_install_prometheus ;;
		chromium) apt_install chromium chromium-driver ;;
		compiler) apt_install gcc libc6-dev ;;
		npm) apt_install npm ;;
		faketime) apt_install faketime ;;
		neighbours) apt_install $(neighbour_packages) ;;
		clients) apt_install python3-grpcio python3-grpc-tools ruby ruby-grpc ruby-grpc-tools protobuf-compiler libprotobuf-dev ;;
		make) apt_install make ;;
		packages) apt_install mmdebstrap rpm systemd ;;
		esac
	elif command -v dnf >/dev/null; then
		case $1 in
		postgres) say "installing postgresql-server with dnf" && as_root dnf -q -y install postgresql-server ;;
		pgbouncer) say "installing pgbouncer with dnf" && as_root dnf -q -y install pgbouncer ;;
		chromium) say "installing chromium with dnf" && as_root dnf -q -y install chromium chromedriver ;;
		prometheus) say "installing prometheus with dnf" && as_root dnf -q -y install golang-github-prometheus ;;
		compiler) say "installing gcc with dnf" && as_root dnf -q -y install gcc ;;
		npm) say "installing npm with dnf" && as_root dnf -q -y install npm ;;
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
	say "PostgreSQL $oldest_postgres or later is missing: caretaker downloads one at first use. If it cannot reach"
	say "Maven Central, install PostgreSQL, for example: sudo apt-get install postgresql"
}

# neighbour_packages prints the names of Debian's packages for the server programs that the tests start.
neighbour_packages() {
	version=$(postgres_bin | sed 's/.*(version \(.*\))/\1/')
	for name in partman repack pglogical cron; do
		echo "postgresql-$version-$name"
	done
}

has_neighbours() {
	program=$(readlink -f "$(postgres_bin | sed 's/ (version .*//')/postgres")
	shared=$("${program%/*}/pg_config" --sharedir 2>/dev/null) || return 1
	for name in pg_partman pg_repack pglogical pg_cron; do
		[ -e "$shared/extension/$name.control" ] || return 1
	done
}

require_neighbours() {
	if ! has_neighbours && { ! install neighbours || ! has_neighbours; }; then
		say "pg_partman, pg_repack, pglogical or pg_cron is missing for the PostgreSQL that the tests start. On Debian:" >&2
		say "sudo apt-get install" $(neighbour_packages)". All other tests: make test" >&2
		return 1
	fi
}

# pgbouncer_program prints the path of the program if devdb finds it.
pgbouncer_program() {
	for program in "$(command -v pgbouncer 2>/dev/null || true)" /usr/sbin/pgbouncer /usr/bin/pgbouncer /usr/local/sbin/pgbouncer \
		/usr/local/bin/pgbouncer /opt/homebrew/bin/pgbouncer /home/linuxbrew/.linuxbrew/bin/pgbouncer "$unpacked_pgbouncer/usr/sbin/pgbouncer"; do
		if [ -x "$program" ]; then
			echo "$program"
			return
		fi
	done
}

require_pgbouncer() {
	found=$(pgbouncer_program)
	if [ -z "$found" ] && { install pgbouncer || apt_unpack_pgbouncer; }; then
		found=$(pgbouncer_program)
	fi
	if [ -z "$found" ]; then
		say "PgBouncer is missing, which the tests put in front of PostgreSQL. Install it, for example: sudo apt-get install pgbouncer," >&2
		say "sudo dnf install pgbouncer (Red Hat: from PostgreSQL's own repository), or brew install pgbouncer" >&2
		return 1
	fi
	say "PgBouncer is $found"
}

# prometheus_folder prints the folder of prometheus and promtool if the tests find them.
prometheus_folder() {
	on_path=$(command -v promtool 2>/dev/null || true)
	for folder in "${on_path%/promtool}" /usr/bin /usr/local/bin /opt/homebrew/bin /home/linuxbrew/.linuxbrew/bin "$unpacked_prometheus/usr/bin"; do
		if [ -x "$folder/promtool" ] && [ -x "$folder/prometheus" ]; then
			echo "$folder"
			return
		fi
	done
}

require_prometheus() {
	found=$(prometheus_folder)
	if [ -z "$found" ] && { install prometheus || apt_unpack_prometheus; }; then
		found=$(prometheus_folder)
	fi
	if [ -z "$found" ]; then
		say "Prometheus (prometheus and promtool) is missing. Install it, for example:" >&2
		say "sudo apt-get install prometheus, brew install prometheus, or unpack https://prometheus.io/download onto PATH" >&2
		return 1
	fi
	say "Prometheus is in $found"
}

has_chromium() {
	command -v chromedriver >/dev/null &&
		{ command -v chromium || command -v chromium-browser || command -v google-chrome || [ -d /Applications/Chromium.app ] ||
			[ -d "/Applications/Google Chrome.app" ]; } >/dev/null
}

require_chromium() {
	if ! has_chromium && { ! install chromium || ! has_chromium; }; then
		say "Chromium or chromedriver is missing. Install both, for example:" >&2
		say "sudo apt-get install chromium chromium-driver. All other tests: make test" >&2
		return 1
	fi
}

require_compiler() {
	for name in "${CC:-gcc}" gcc clang; do
		if command -v "$name" >/dev/null; then
			return 0
		fi
	done
	# On macOS the race detector needs no compiler.
	if [ "$(uname)" != Darwin ] && ! install compiler; then
		say "a C compiler is missing, which the race detector needs. Install one, for example:" >&2
		say "sudo apt-get install gcc libc6-dev. Or run the tests without the race detector: make test" >&2
		return 1
	fi
}

require_npm() {
	if ! command -v npm >/dev/null && ! install npm; then
		say "npm is missing, which fetches other versions of PostgreSQL. Install it, for example: sudo apt-get install npm" >&2
		return 1
	fi
}

require_packages() {
	for program in mmdebstrap rpm systemd-analyze; do
		if ! command -v $program >/dev/null && ! { command -v apt-get >/dev/null && install packages; }; then
			say "$program is missing. Test packages on Debian, as root: sudo apt-get install mmdebstrap rpm systemd" >&2
			return 1
		fi
	done
}

has_clients() {
	command -v protoc >/dev/null && command -v grpc_python_plugin >/dev/null && command -v grpc_tools_ruby_protoc >/dev/null &&
		/usr/bin/python3 -c 'import grpc' 2>/dev/null && ruby -e 'require "grpc"' 2>/dev/null
}

require_clients() {
	if ! has_clients && { ! install clients || ! has_clients; }; then
		say "Python or Ruby with gRPC is missing, for the examples of the documentation. On Debian: sudo apt-get install python3-grpcio" >&2
		say "python3-grpc-tools ruby-grpc ruby-grpc-tools protobuf-compiler libprotobuf-dev. All other tests: make test" >&2
		return 1
	fi
}

# Without it the campaign of faults reports what it has skipped.
require_faketime() {
	if ! ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 && ! install faketime; then
		say "faketime is missing: the tests do not change the clock of the database"
	fi
}

require_make() {
	if ! command -v make >/dev/null && ! install make; then
		say "make is missing. Install it, for example: sudo apt-get install make" >&2
		return 1
	fi
}

for name in "$@"; do
	case $name in
	postgres | pgbouncer | neighbours | prometheus | chromium | compiler | clients | packages | faketime | npm | make) "require_$name" ;;
	*) say "unknown requirement $name: postgres, pgbouncer, neighbours, prometheus, chromium, compiler, clients, packages, faketime, npm or make" >&2 && exit 2 ;;
	esac
done
