package cli_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// mostSeries is how many a default server with three databases may show for each of its workers.
const mostSeries = 120

// callAll makes every call of the API with an empty request: some of them are answered, some refused.
func (r *running) callAll(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	of := maintenancev1.MaintenanceService_ServiceDesc
	for _, method := range of.Methods {
		_ = conn.Invoke(t.Context(), "/"+of.ServiceName+"/"+method.MethodName, &emptypb.Empty{}, &emptypb.Empty{})
	}
}

// series are how many series each metric has.
func (r *running) series(t *testing.T) map[string]int {
	t.Helper()
	found := map[string]int{}
	for line := range strings.Lines(r.scrape(t)) {
		if name := line[:strings.IndexAny(line, "{ ")]; name != "#" {
			found[name]++
		}
	}
	return found
}

func TestMetrics_OfADefaultServerAreFewSeries(t *testing.T) {
	sh := newShell(t)
	ctx := context.Background()
	urls := map[string]string{}
	for _, name := range []string{"main", "ci", "sec"} {
		urls[name] = databases.Clone(t, devdb.Template{Name: "bare", Schema: name})
		sh.set("CARETAKER_DATABASES_"+strings.ToUpper(name)+"_URL", urls[name])
	}
	if err := devdb.LoadDemo(ctx, urls); err != nil {
		t.Fatal(err)
	}
	sh.defined(devdb.Definitions())
	sh.migrate()
	conn, err := pgx.Connect(ctx, urls["main"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	r := sh.serving()
	for _, w := range append(r.others(t), worker+" --database main", worker+" --database ci", worker+" --database sec") {
		r.want(0, "run "+w+" --dry-run")
		r.want(0, "run "+w)
	}
	execute(t, conn, `INSERT INTO maintenance.river_job (kind, args, max_attempts, queue, state)
		VALUES ('continue_inactive_token_deletion', '{"pass_id": "00000000-0000-7000-8000-000000000000"}', 25, 'default', 'available')`)
	eventually(t, "all jobs have ended", &r.log, func() bool {
		execute(t, conn, `UPDATE maintenance.river_job SET scheduled_at = now(), state = 'available' WHERE state IN ('scheduled', 'retryable')`)
		left := 0
		err := conn.QueryRow(ctx, `SELECT count(*) FROM maintenance.river_job WHERE state IN ('available', 'running', 'scheduled')`).Scan(&left)
		return err == nil && left == 0
	})
	r.want(0, "run ghost_user_migration")
	for _, command := range []string{"status", "leases", "runs", "fires", "jobs", "flags", "pause --all --reason r", "resume --all"} {
		r.want(0, command)
	}
	// The status of some calls is another one than that of most.
	r.callAll(t)
	found := r.series(t)
	sum := 0
	for _, n := range found {
		sum += n
	}
	most := mostSeries * len(servicetest.Workers())
	if sum <= most {
		return
	}
	t.Errorf("%d series, want %d at most", sum, most)
	for _, name := range slices.SortedFunc(maps.Keys(found), func(a, b string) int { return cmp.Compare(found[b], found[a]) }) {
		t.Logf("%4d %s", found[name], name)
	}
}
