//go:build jaeger

package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// jaeger is a real Jaeger, asked over its own query API.
type jaeger struct {
	t          *testing.T
	otlp, http string
}

// startJaeger starts bin/jaeger, which "make test-jaeger" has built, with all in memory.
func startJaeger(t *testing.T) *jaeger {
	t.Helper()
	program, err := filepath.Abs("../bin/jaeger")
	if err == nil {
		_, err = os.Stat(program)
	}
	assert.Require(t, err == nil, "no Jaeger: start this test with make test-jaeger, which builds it: %v", err)
	ports := freePorts(t, 4)
	c := exec.Command(program, "--config", "../tools/jaeger/config.yaml")
	c.Env = append(os.Environ(), "JAEGER_QUERY_PORT="+ports[0], "JAEGER_QUERY_GRPC_PORT="+ports[1],
		"JAEGER_OTLP_GRPC_PORT="+ports[2], "JAEGER_OTLP_HTTP_PORT="+ports[3])
	log := &screen{}
	c.Stdout, c.Stderr = log, log
	assert.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	j := &jaeger{t: t, http: "http://127.0.0.1:" + ports[0], otlp: "http://127.0.0.1:" + ports[3]}
	eventually(t, "Jaeger answers", log, func() bool {
		_, err := get(j.http + "/api/services")
		return err == nil
	})
	return j
}

// jaegerTrace is a trace as Jaeger's query API returns it.
type jaegerTrace struct {
	TraceID string       `json:"traceID"`
	Spans   []jaegerSpan `json:"spans"`
	raw     string
}

type jaegerSpan struct {
	TraceID    string `json:"traceID"`
	SpanID     string `json:"spanID"`
	Name       string `json:"operationName"`
	StartTime  int64  `json:"startTime"`
	Duration   int64  `json:"duration"`
	References []struct {
		Type    string `json:"refType"`
		TraceID string `json:"traceID"`
		SpanID  string `json:"spanID"`
	} `json:"references"`
	Tags []struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	} `json:"tags"`
}

// tag is the value of an attribute as text, "" if none exists.
func (s jaegerSpan) tag(key string) string {
	for _, tag := range s.Tags {
		if number, ok := tag.Value.(float64); ok && tag.Key == key {
			return strconv.FormatFloat(number, 'f', -1, 64)
		}
		if tag.Key == key {
			return fmt.Sprint(tag.Value)
		}
	}
	return ""
}

// parent is the id of the span's parent, "" for a root.
func (s jaegerSpan) parent() string {
	for _, r := range s.References {
		if r.Type == "CHILD_OF" {
			return r.SpanID
		}
	}
	return ""
}

// links are the trace and span ids that the span is linked to.
func (s jaegerSpan) links() (out []string) {
	for _, r := range s.References {
		if r.Type == "FOLLOWS_FROM" {
			out = append(out, r.TraceID+"/"+r.SpanID)
		}
	}
	return out
}

func (s jaegerSpan) id() string { return s.TraceID + "/" + s.SpanID }

// named are the spans of a trace with a name.
func (tr jaegerTrace) named(name string) []jaegerSpan {
	return slices.DeleteFunc(slices.Clone(tr.Spans), func(s jaegerSpan) bool { return s.Name != name })
}

// only is the one span of a name.
func (tr jaegerTrace) only(t *testing.T, name string) jaegerSpan {
	t.Helper()
	found := tr.named(name)
	assert.Require(t, len(found) == 1, "%d spans %s in\n%s", len(found), name, tr)
	return found[0]
}

// String draws the tree.
func (tr jaegerTrace) String() string {
	var out strings.Builder
	spans := slices.Clone(tr.Spans)
	slices.SortFunc(spans, func(a, b jaegerSpan) int { return int(a.StartTime - b.StartTime) })
	known := map[string]bool{}
	for _, s := range spans {
		known[s.SpanID] = true
	}
	var draw func(parent string, depth int)
	draw = func(parent string, depth int) {
		for _, s := range spans {
			if depth == 0 && known[s.parent()] || depth > 0 && s.parent() != parent {
				continue
			}
			fmt.Fprintf(&out, "%s%s (%.1f ms)", strings.Repeat("  ", depth), s.Name, float64(s.Duration)/1000)
			for _, tag := range s.Tags {
				if strings.HasPrefix(tag.Key, "maintenance.") || strings.HasPrefix(tag.Key, "error") {
					fmt.Fprintf(&out, " %s=%v", strings.TrimPrefix(tag.Key, "maintenance."), tag.Value)
				}
			}
			for _, l := range s.links() {
				fmt.Fprintf(&out, " -> %s", l)
			}
			out.WriteString("\n")
			draw(s.SpanID, depth+1)
		}
	}
	draw("", 0)
	return out.String()
}

func (j *jaeger) traces(path string) (out []jaegerTrace) {
	j.t.Helper()
	body, err := get(j.http + path)
	if err != nil {
		return nil
	}
	var answer struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		j.t.Fatalf("%v in %s", err, body)
	}
	for _, raw := range answer.Data {
		tr := jaegerTrace{raw: string(raw)}
		if err := json.Unmarshal(raw, &tr); err != nil {
			j.t.Fatalf("%v in %s", err, raw)
		}
		out = append(out, tr)
	}
	return out
}

// trace waits for a trace in which a span of each name has arrived, which is its last.
func (j *jaeger) trace(id string, names ...string) (found jaegerTrace) {
	j.t.Helper()
	eventually(j.t, fmt.Sprintf("trace %s with %s", id, names), &screen{}, func() bool {
		for _, found = range j.traces("/api/traces/" + id) {
			if !slices.ContainsFunc(names, func(name string) bool { return len(found.named(name)) == 0 }) {
				return true
			}
		}
		return false
	})
	return found
}

// search finds the traces with a span of an operation that has these attributes.
func (j *jaeger) search(operation string, tags map[string]string) []jaegerTrace {
	j.t.Helper()
	encoded := assert.Must(json.Marshal(tags))(j.t)
	now := time.Now()
	query := url.Values{
		"service": {"caretaker"}, "limit": {"1500"}, "tags": {string(encoded)},
		"start": {fmt.Sprint(now.Add(-time.Hour).UnixMicro())}, "end": {fmt.Sprint(now.Add(time.Minute).UnixMicro())},
	}
	if operation != "" {
		query.Set("operation", operation)
	}
	return j.traces("/api/traces?" + query.Encode())
}

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
ANALYZE`

const ownDefinitions = `
drained: [{table: drainers, column: drainer_id, on_delete: async_delete}]
faulty: [{table: faulters, column: faulter_id, on_delete: async_delete}]
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
	e.sql = servicetest.Connect(t, urls["main"])
	execute(t, e.sql, ownQueueSQL)
	sh.defined(devdb.Definitions() + ownDefinitions)
	sh.migrate()
	sh.want(0, "lfk install --database main", "installed")
	for _, table := range []string{"users", "namespaces", "projects", "merge_requests", "drainers", "faulters"} {
		sh.want(0, "lfk track "+table+" --database main")
	}
	e.serve()
	return e
}

// serve starts the server. One worker runs by its schedule, every minute. The others on request.
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
	e.calls++
	id := fmt.Sprintf("%032x", 0xca11<<32+e.calls)
	ctx, cancel := context.WithTimeout(e.t.Context(), devdb.WaitTimeout)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+id+"-"+callerSpan+"-01")
	response, err := e.client.RunBatch(ctx, request)
	assert.Require(e.t, err == nil, "%s: %v\n%s", request.GetWorker(), err, e.log)
	run := response.GetRun()
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
