package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const worker = "loose_foreign_keys_cleanup"

// screen is what a command that runs on has written so far.
type screen struct {
	mu      sync.Mutex
	content bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.String()
}

// field is the text value of a key of a log line with a message, once there is one.
func (s *screen) field(t *testing.T, message, key string) string {
	t.Helper()
	found := ""
	eventually(t, "the log has "+message, s, func() bool {
		for text := range strings.Lines(s.String()) {
			line := map[string]any{}
			if json.Unmarshal([]byte(text), &line) == nil && line["msg"] == message {
				found, _ = line[key].(string)
				return true
			}
		}
		return false
	})
	return found
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, s *screen, holds func() bool) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(s)
		}
	}()
	devdb.Eventually(t, what, holds)
}

// running is a server in this process.
type running struct {
	sh       *shell
	address  string
	out, log screen
	stop     context.CancelFunc
	exit     chan int
}

// serving runs serve, or what is given, until the test ends, and waits until it serves.
func (sh *shell) serving(command ...string) *running {
	sh.t.Helper()
	if len(command) == 0 {
		command = []string{"serve"}
	}
	sh.set("CARETAKER_SCHEDULER_ENABLED", "false")
	ctx, stop := context.WithCancel(context.Background())
	r := &running{sh: sh, stop: stop, exit: make(chan int, 1)}
	streams := cli.Streams{In: strings.NewReader(""), Out: &r.out, Err: &r.log, Env: sh.environment()}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.exit <- cli.Run(ctx, command, streams)
	}()
	sh.t.Cleanup(func() {
		stop()
		<-ended
	})
	eventually(sh.t, "the server serves", &r.log, func() bool {
		return strings.Contains(r.log.String(), `"msg":"serving"`) || len(r.exit) > 0
	})
	r.address = r.log.field(sh.t, "serving", "listen")
	return r
}

// want runs a client command on the server.
func (r *running) want(code int, command string, parts ...string) string {
	r.sh.t.Helper()
	return r.sh.want(code, command+" --address "+r.address, parts...)
}

// others are the workers that are configured on the server's databases, but for the one of most tests.
func (r *running) others(t *testing.T) []string {
	t.Helper()
	conn := assert.Must(grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer func() { _ = conn.Close() }()
	return others(t, maintenancev1.NewMaintenanceServiceClient(conn))
}

func others(t *testing.T, c maintenancev1.MaintenanceServiceClient) (names []string) {
	t.Helper()
	all := assert.Must(c.GetStatus(t.Context(), &maintenancev1.GetStatusRequest{}))(t)
	for _, st := range all.GetWorkers() {
		if st.GetWorker() != worker && st.GetCondition() != maintenancev1.Condition_CONDITION_NOT_CONFIGURED {
			names = append(names, st.GetWorker())
		}
	}
	return names
}

// prepared makes a migrated database with a queue and a table c of children of p, which the environment names.
func (sh *shell) prepared() *pgx.Conn {
	sh.t.Helper()
	conn := sh.database("main", servicetest.Migrated("ci"))
	execute(sh.t, conn, `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	return conn
}

const oneKey = "c: [{table: p, column: p_id, on_delete: async_delete}]"

// slow gives the worker children of one parent that take 50 ms each, 20 s in all.
const slow = `
INSERT INTO c (p_id) SELECT 1 FROM generate_series(1, 400);
CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.05); RETURN OLD; END';
CREATE TRIGGER nap BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION nap();
INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1)`

// document parses the output of a command as one JSON document.
func document(t *testing.T, out string) map[string]any {
	t.Helper()
	d := map[string]any{}
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return d
}

// folder is a folder that PostgreSQL's user can reach, other than t.TempDir's.
func folder(t *testing.T) string {
	t.Helper()
	dir := assert.Must(os.MkdirTemp("", "caretaker-cli-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	assert.NoError(t, os.Chmod(dir, 0o711))
	return dir
}
