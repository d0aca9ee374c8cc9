#!/bin/sh
# Adds the example worker of CONTRIBUTING.md, service/testdata/sixth_worker, to a copy of the working tree: one folder in
# service, one file in repo/gitlab, one line in the list, one page. Nothing else changes. The copy must build, and the tests
# of all packages that know every worker must pass. Arguments replace these tests: packages and flags of go test.
set -eu
cd "$(dirname "$0")/.."

# These flags link programs faster, as in gotest.sh.
export CGO_ENABLED=0
tests() {
	go test -timeout 60m "-ldflags=-s -w" "$@"
}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$copy"
cd "$copy"
cp -R service/testdata/sixth_worker/. .
awk '
	/^import \(/ { print; inside = 1; next }
	inside && /service\/gitlab\/deletion"/ { print "\t\"github.com/caretaker-go/caretaker/service/gitlab/authenticationevent\"" }
	{ print }
	/line\(token\.Name/ { print "\t\t\tline(authenticationevent.Name, authenticationevent.New)," }
' service/workers.go >service/workers.go.new
mv service/workers.go.new service/workers.go
go run ./tools/configdoc
go vet ./repo/... ./service/... ./cli
if [ $# -gt 0 ]; then
	tests "$@"
else
	tests ./service/gitlab/authenticationevent
	tests ./repo ./service -run 'TestSQL|TestWorkers|TestSettings'
	# These packages show or start workers: status, lists, pages, schedules, help, log lines, metrics.
	tests ./server ./scheduler -skip TestFault_
	tests ./web -run 'TestOverview|TestDecisions|TestPages|TestAct_EachRole'
	tests ./cli -run 'TestServe_ThatHasRunAllWorkers|TestLog_|TestMetrics_|TestClient_|TestRun_|TestRunbook_|TestExplain_'
fi
