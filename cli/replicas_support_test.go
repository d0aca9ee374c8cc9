package cli_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// node is a server in a process of its own, on a database that others may use too.
type node struct {
	maintenancev1.MaintenanceServiceClient
	t *testing.T
	// name is its application_name in the database.
	name, address string
	process       *exec.Cmd
	log           *screen
	health        healthv1.HealthClient
}

// startNode starts a server without schedules, unless the environment reports otherwise.
func startNode(t *testing.T, name, url string, environment ...string) *node {
	t.Helper()
	n := &node{t: t, name: name}
	file := filepath.Join(t.TempDir(), "definitions.yml")
	assert.NoError(t, os.WriteFile(file, []byte(oneKey), 0o600))
	n.process, n.log = alone(t).process("serve", append([]string{
		"CARETAKER_DATABASES_MAIN_URL=" + url + "&application_name=" + name, "CARETAKER_LISTEN=127.0.0.1:0", "CARETAKER_METRICS_LISTEN=",
		"CARETAKER_SCHEDULER_ENABLED=false", "CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS=" + file,
		"CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_MAX_RUNTIME=1s",
	}, environment...)...)
	n.address = n.log.field(t, "serving", "listen")
	conn := assert.Must(grpc.NewClient(n.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	n.MaintenanceServiceClient, n.health = maintenancev1.NewMaintenanceServiceClient(conn), healthv1.NewHealthClient(conn)
	return n
}

// end sends a signal and waits for the end of the process.
func (n *node) end(s syscall.Signal) {
	n.t.Helper()
	signal(n.t, n.process, s)
	_ = n.process.Wait()
}

// serving reports what health there is of a service.
func (n *node) serving(service string) bool {
	n.t.Helper()
	answer, err := n.health.Check(context.Background(), &healthv1.HealthCheckRequest{Service: service})
	assert.Require(n.t, err == nil, "health of %q: %v\n%s", service, err, n.log)
	return answer.GetStatus() == healthv1.HealthCheckResponse_SERVING
}

func (n *node) status(worker string) *maintenancev1.WorkerStatus {
	n.t.Helper()
	answer, err := n.GetStatus(context.Background(), &maintenancev1.GetStatusRequest{Worker: worker})
	assert.Require(n.t, err == nil, "%v\n%s", err, n.log)
	return answer.GetWorkers()[0]
}

// wantCondition waits until a worker is in a condition.
func (n *node) wantCondition(worker string, want maintenancev1.Condition) *maintenancev1.WorkerStatus {
	n.t.Helper()
	var last *maintenancev1.WorkerStatus
	eventually(n.t, fmt.Sprintf("%s of %s is %s", worker, n.name, want), n.log, func() bool {
		last = n.status(worker)
		return last.GetCondition() == want
	})
	return last
}

// clean runs loose_foreign_keys_cleanup to its end.
func (n *node) clean() (*maintenancev1.Run, error) {
	answer, err := n.RunBatch(context.Background(), &maintenancev1.RunBatchRequest{Worker: worker, Async: false})
	return answer.GetRun(), err
}

// shared is a migrated database with the reference schema of main, for several nodes.
type shared struct {
	t    *testing.T
	url  string
	sql  *pgx.Conn
	main *repo.Database
}

// reference is the reference schema of main, not migrated.
var reference = devdb.Template{Name: "bare", Schema: "main"}

func newShared(t *testing.T, url string) *shared {
	t.Helper()
	return &shared{t: t, url: url, main: servicetest.Open(t, url), sql: servicetest.Connect(t, url)}
}

func (s *shared) migrate() *shared {
	s.t.Helper()
	assert.Must(scheduler.Migrate(context.Background(), s.main))(s.t)
	return s
}

// gateSQL makes children of p, and rows that wait at a gate for the clients named in it. Rows that
// go through are recorded.
const gateSQL = `
CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
CREATE INDEX ON c (p_id);
CREATE TABLE gate (app text PRIMARY KEY);
CREATE TABLE audit (what text, row bigint, app text DEFAULT current_setting('application_name'));
CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  WHILE EXISTS (SELECT FROM gate WHERE app = current_setting('application_name')) LOOP PERFORM pg_sleep(0.02); END LOOP;
  INSERT INTO audit VALUES (TG_TABLE_NAME, CASE TG_TABLE_NAME WHEN 'c' THEN (to_jsonb(OLD) ->> 'id')::bigint ELSE (to_jsonb(NEW) ->> 'user_id')::bigint END);
  RETURN coalesce(NEW, OLD);
END $$;
CREATE TRIGGER gate BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION wait_at_gate();
CREATE TRIGGER gate BEFORE INSERT ON ghost_user_migrations FOR EACH ROW EXECUTE FUNCTION wait_at_gate();
INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`

func (s *shared) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.sql.Exec(context.Background(), sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

func (s *shared) value(sql string, args ...any) string {
	s.t.Helper()
	var v *string
	if err := s.sql.QueryRow(context.Background(), "SELECT ("+sql+")::text", args...).Scan(&v); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	if v == nil {
		return "NULL"
	}
	return *v
}

func (s *shared) want(sql, want string) {
	s.t.Helper()
	assert.Equal(s.t, s.value(sql), want, sql)
}

func (s *shared) until(sql, want string) {
	s.t.Helper()
	got := want
	defer func() {
		if got != want {
			s.t.Logf("it is %s", got)
		}
	}()
	devdb.Eventually(s.t, sql+" to be "+want, func() bool {
		got = s.value(sql)
		return got == want
	})
}

// children makes children of new parents, first to last, and records these as deleted.
func (s *shared) children(first, last int) {
	s.t.Helper()
	s.exec(`INSERT INTO c (p_id) SELECT generate_series($1::bigint, $2)`, first, last)
	s.exec(`INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
		SELECT 'public.p', generate_series($1::bigint, $2)`, first, last)
}

// users makes placeholder users, first to last, and queues their deletion.
func (s *shared) users(first, last int) {
	s.t.Helper()
	s.exec(`INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id)
		SELECT i, 'u' || i, 'u' || i, 0, 'active', 15, 1 FROM generate_series($1::bigint, $2) i`, first, last)
	s.queue(first, last)
}

// queue queues the deletion of users, first to last.
func (s *shared) queue(first, last int) {
	s.t.Helper()
	q := assert.Must(scheduler.NewQueue(s.main, scheduler.QueueConfig{}))(s.t)
	ctx := context.Background()
	tx := assert.Must(s.sql.Begin(ctx))(s.t)
	var jobs []jobqueue.Job
	for id := first; id <= last; id++ {
		jobs = append(jobs, jobqueue.Job{Args: jobqueue.DeleteUser{UserID: int64(id), SkipAuthorization: true, Reason: "test"}})
	}
	_, err := q.InsertJobs(ctx, tx, jobs)
	assert.NoError(s.t, errors.Join(err, tx.Commit(ctx)))
}

// shut lets everything of a client wait at the gate until it is lifted.
func (s *shared) shut(names ...string) {
	s.t.Helper()
	s.exec(`INSERT INTO gate SELECT unnest($1::text[])`, names)
}

func (s *shared) lift() {
	s.t.Helper()
	s.exec(`DELETE FROM gate`)
}

// waitsAtGate is which client is the first to stand at the gate.
const waitsAtGate = `SELECT min(application_name) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`

// attemptsAge makes every attempt running as old as one that is taken for dead, as if the time had
// passed.
func (s *shared) attemptsAge() {
	s.t.Helper()
	// Row by row: a killed server's connections may still lock some of the rows.
	s.exec(`DO $$ DECLARE job bigint; BEGIN
		FOR job IN SELECT id FROM maintenance.river_job WHERE state = 'running' LOOP
			UPDATE maintenance.river_job SET attempted_at = attempted_at - interval '2 minutes' WHERE id = job AND state = 'running';
			COMMIT;
		END LOOP; END $$`)
}
