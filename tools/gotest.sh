#!/bin/sh
# gotest.sh FLAG... PACKAGE...: runs "go test" with one PostgreSQL cluster for all packages. Prints a line for each
# package as it finishes, then what failed, then the ten slowest tests. With -v it prints what tests print.
set -eu
cd "$(dirname "$0")/.."
# Tests are faster with less garbage collection and without debugging information.
export GOGC="${GOGC:-400}"
# Programs without C are linked faster. The race detector needs C.
case " $* " in
*" -race "*) ;;
*) export CGO_ENABLED=0 ;;
esac
sum="go tool -modfile=tools/gotestsum/go.mod gotestsum"
# One folder has the files of all commands, also of interrupted ones.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM
events=$work/events
export GOTMPDIR="$work"
format=pkgname
case " $* " in
*" -v "*) format=standard-verbose ;;
esac
code=0
echo "Building the tests: about two minutes the first time, then seconds."
# Tests wait half of their time. One package more than cores, with four tests each, keeps all cores busy.
go run ./tools/testcluster $sum --format $format --format-icons text --hide-summary skipped --jsonfile-timing-events "$events" -- "-ldflags=-s -w" -p $(($(getconf _NPROCESSORS_ONLN) + 1)) -parallel 4 "$@" ||
	code=$?
if grep -qs '"Test":' "$events"; then
	echo "The ten slowest tests:"
	$sum tool slowest --num 10 --threshold 1ms --jsonfile "$events" || :
elif [ $code = 0 ]; then
	echo "No test ran: check PACKAGES and the pattern of -run. Tests whose names begin with TestFault_, TestPages_, TestPlans_" \
		"or TestNeighbour_ also have targets of their own: make help." >&2
	code=1
fi
exit $code
