//go:build jaeger

package cli_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// tracedEstate is the demo's estate with a server of its own process, which sends its traces to Jaeger. The queue of
// main is our own, as only that keeps traces.
type tracedEstate struct {
	*jaeger
	sh     *shell
	sql    *pgx.Conn
	client maintenancev1.MaintenanceServiceClient
	server *exec.Cmd
	log    *screen
	calls  int
}

// ownQueueSQL removes GitLab's queue with its triggers, and makes the tables of a huge drain and of a faulty one.
const ownQueueSQL = `
DROP TABLE loose_foreign_keys_deleted_records;
DROP FUNCTION insert_into_loose_foreign_keys_deleted_records CASCADE;
DROP FUNCTION IF EXISTS insert_into_loose_foreign_keys_deleted_records_override_table CASCADE;
CREATE TABLE drainers (id bigint PRIMARY KEY); INSERT INTO drainers SELECT generate_series(1, 20000);
CREATE TABLE drained (id bigserial PRIMARY KEY, drainer_id bigint);
INSERT INTO drained (drainer_id) SELECT i % 20000 + 1 FROM generate_series(1, 100000) i;
CREATE INDEX ON drained (drainer_id);
CREATE TABLE faulters (id bigint PRIMARY KEY); INSERT INTO faulters SELECT generate_series(1, 3);
CREATE TABLE faulty (id bigserial PRIMARY KEY, faulter_id bigint); INSERT INTO faulty (faulter_id) SELECT i % 3 + 1 FROM generate_series(1, 30) i;
CREATE INDEX ON faulty (faulter_id);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a secret of row %', OLD.id; END $$;
CREATE TRIGGER refuse BEFORE DELETE ON faulty FOR EACH ROW WHEN (OLD.faulter_id = 2) EXECUTE FUNCTION refuse();
CREATE TABLE slow (id bigint PRIMARY KEY); INSERT INTO slow VALUES (1);
CREATE TABLE slow_child (slow_id bigint); CREATE INDEX ON slow_child (slow_id);
CREATE TABLE next_child (slow_id bigint); CREATE INDEX ON next_child (slow_id);
INSERT INTO slow_child VALUES (1); INSERT INTO next_child VALUES (1);
CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.6); RETURN NULL; END $$;
CREATE TRIGGER dawdle BEFORE DELETE ON slow_child EXECUTE FUNCTION dawdle();
ANALYZE`

const ownDefinitions = `
drained: [{table: drainers, column: drainer_id, on_delete: async_delete}]
faulty: [{table: faulters, column: faulter_id, on_delete: async_delete}]
slow_child: [{table: slow, column: slow_id, on_delete: async_delete}]
next_child: [{table: slow, column: slow_id, on_delete: async_delete}]
`

func newTracedEstate(t *testing.T) *tracedEstate {
	t.Helper()
	sh := alone(t)
	e := &tracedEstate{jaeger: startJaeger(t), sh: sh}
	urls := map[string]string{}
	for _, name := range []string{"main", "ci", "sec"} {
		urls[name] = databases.Clone(t, devdb.Template{Name: "bare", Schema: name})
		sh.set("CARETAKER_DATABASES_"+strings.ToUpper(name)+"_URL", urls[name])
	}
	assert.NoError(t, devdb.LoadDemo(t.Context(), urls))
	e.sql = assert.Must(pgx.Connect(t.Context(), urls["main"]))(t)
	t.Cleanup(func() { _ = e.sql.Close(context.Background()) })
	execute(t, e.sql, ownQueueSQL)
	sh.defined(devdb.Definitions() + ownDefinitions)
	sh.migrate()
	sh.want(0, "lfk install --database main", "installed")
	for _, table := range []string{"users", "namespaces", "projects", "merge_requests", "drainers", "faulters", "slow"} {
		sh.want(0, "lfk track "+table+" --database main")
	}
	e.serve()
	return e
}

// serve starts the server. One worker runs by its schedule, every minute; the others on request.
func (e *tracedEstate) serve() {
	e.t.Helper()
	for key, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": e.otlp, "OTEL_METRICS_EXPORTER": "none", "OTEL_BSP_SCHEDULE_DELAY": "200",
		"CARETAKER_LISTEN": "127.0.0.1:0", "CARETAKER_METRICS_LISTEN": "", "CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_ENABLED": "false",
		"CARETAKER_WORKERS_GHOST_USER_MIGRATION_ENABLED": "false", "CARETAKER_WORKERS_ADJOURNED_GROUP_DELETION_ENABLED": "false",
		"CARETAKER_WORKERS_PLACEHOLDER_USER_CLEANUP_ENABLED": "false", "CARETAKER_WORKERS_INACTIVE_TOKEN_DELETION_SCHEDULE": "* * * * *",
		"CARETAKER_WORKERS_PLACEHOLDER_USER_CLEANUP_INTERVAL": "1ms", "CARETAKER_WORKERS_ADJOURNED_GROUP_DELETION_INTERVAL": "1ms",
	} {
		e.sh.set(key, value)
	}
	e.server, e.log = e.sh.process("serve")
	address := e.log.field(e.t, "serving", "listen")
	conn := assert.Must(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())))(e.t)
	e.t.Cleanup(func() { _ = conn.Close() })
	e.client = maintenancev1.NewMaintenanceServiceClient(conn)
}

// call asks for a run with a traceparent, as grpcurl -H would, and returns the run when it has ended with the trace.
func (e *tracedEstate) call(request *maintenancev1.RunBatchRequest) (*maintenancev1.Run, jaegerTrace) {
	e.t.Helper()
	id, run, err := e.ask(request)
	if err != nil {
		e.t.Fatalf("%s: %v\n%s", request.GetWorker(), err, e.log)
	}
	return e.finish(id, run)
}

// ask asks for a run in a trace of this id.
func (e *tracedEstate) ask(request *maintenancev1.RunBatchRequest) (id string, _ *maintenancev1.Run, err error) {
	e.calls++
	id = fmt.Sprintf("%032x", 0xca11<<32+e.calls)
	ctx, cancel := context.WithTimeout(e.t.Context(), devdb.WaitTimeout)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+id+"-"+callerSpan+"-01")
	response, err := e.client.RunBatch(ctx, request)
	return id, response.GetRun(), err
}

// finish waits for the end of a run and for its trace.
func (e *tracedEstate) finish(id string, run *maintenancev1.Run) (*maintenancev1.Run, jaegerTrace) {
	e.t.Helper()
	eventually(e.t, "the run has ended", e.log, func() bool {
		again := assert.Must(e.client.GetRun(e.t.Context(), &maintenancev1.GetRunRequest{Id: run.GetId()}))(e.t)
		run = again.GetRun()
		return run.GetState() != maintenancev1.RunState_RUN_STATE_RUNNING
	})
	assert.Equal(e.t, run.GetTraceId(), id, "trace", run.GetWorker())
	return run, e.trace(id, "maintenance.run", runBatch)
}

// callerSpan is the caller's span, which Jaeger never hears of.
const callerSpan = "00f067aa0ba902b7"

const runBatch = "maintenance.v1.MaintenanceService/RunBatch"

// value is a number from main.
func (e *tracedEstate) value(sql string) (n int) {
	e.t.Helper()
	if err := e.sql.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		e.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// settled waits until no job waits or runs that will not wait long.
func (e *tracedEstate) settled() {
	e.t.Helper()
	eventually(e.t, "the jobs are worked", e.log, func() bool {
		return e.value(`SELECT count(*) FROM maintenance.river_job WHERE state IN ('available', 'running', 'pending')
			OR state IN ('scheduled', 'retryable') AND scheduled_at < now() + interval '10 seconds'`) == 0
	})
}

// tick waits for the trace of a run of the schedule, which comes every minute.
func (e *tracedEstate) tick() jaegerTrace {
	e.t.Helper()
	var found []jaegerTrace
	eventually(e.t, "a run of the schedule", e.log, func() bool {
		found = e.search("maintenance.run", map[string]string{"maintenance.trigger": "schedule"})
		return len(found) > 0
	})
	return found[0]
}

// stop ends the server, with all that it has not sent yet.
func (e *tracedEstate) stop() {
	e.t.Helper()
	signal(e.t, e.server, syscall.SIGTERM)
	if err := e.server.Wait(); err != nil {
		e.t.Errorf("%v\n%s", err, e.log)
	}
}
