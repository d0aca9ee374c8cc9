# Starts a server, or watches a running one, and stops it when the process at the
# other end of standard input ends.
#   $1 server's data folder   $2 folder to remove in the end, or empty
#   $3 process id of the running server, or empty   $4... the server's command
data=$1 remove=$2 pid=${3:-$$}
watch_only=$3
shift 3

named() { # reports whether postmaster.pid names our server, not a reused pid
	read -r first <"$data/postmaster.pid" && [ "$first" = "$pid" ]
}

watch() {
	trap '' HUP INT TERM
	cd /
	read -r word <&3 # blocks until the owner ends or closes the pipe
	[ "$word" != keep ] || remove= # the owner removes or keeps the folder itself
	tick=0 asked=
	while kill -0 "$pid" && [ $tick -lt 300 ]; do
		if named; then
			[ -n "$asked" ] || kill -INT "$pid"
			[ $tick -ne 200 ] || kill -QUIT "$pid"
			asked=yes
		elif [ -n "$asked" ]; then
			break
		fi
		tick=$((tick + 1))
		sleep 0.1
	done
	[ -z "$remove" ] || rm -rf "$remove"
}

# Two forks, so that the watcher is no child of the server, which would reap it.
exec 3<&0
(watch >/dev/null 2>&1 &)
exec 3<&- </dev/null
[ -n "$watch_only" ] || exec "$@"
