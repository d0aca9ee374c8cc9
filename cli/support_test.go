package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

var databases devdb.Tests

// The tests fail if goroutines of a server remain.
func TestMain(m *testing.M) {
	code := databases.Run(m)
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// shell runs the commands of a test in an environment of their own, on databases of their own.
type shell struct {
	t         *testing.T
	variables map[string]string
	databases *devdb.Tests
	// apart: a server is a process of its own, as OpenTelemetry's providers are those of a process.
	apart bool
}

// newShell lets the test run in parallel, and returns a shell whose servers listen on free ports.
func newShell(t *testing.T) *shell {
	t.Helper()
	t.Parallel()
	return alone(t)
}

// alone is newShell for a test that is not parallel, as it concerns the whole process.
func alone(t *testing.T) *shell {
	t.Helper()
	return &shell{t: t, databases: &databases, variables: map[string]string{
		"HOME": t.TempDir(), "CARETAKER_USE": "gitlab", "CARETAKER_LISTEN": "127.0.0.1:0", "CARETAKER_METRICS_LISTEN": "127.0.0.1:0",
	}}
}

// onItsOwnCluster lets the shell make its databases on a cluster that no other test uses, for what concerns the whole
// server: standbys, settings, stops.
func (sh *shell) onItsOwnCluster() *devdb.Cluster {
	sh.t.Helper()
	own := &devdb.Tests{Settings: map[string]string{"cluster_name": "own"}}
	sh.t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			sh.t.Error(err)
		}
	})
	sh.databases = own
	return own.Cluster(sh.t)
}

// sub returns a copy for a subtest, whose variables end with it.
func (sh *shell) sub(t *testing.T) *shell {
	t.Helper()
	return &shell{t: t, variables: maps.Clone(sh.variables), databases: sh.databases}
}

func (sh *shell) set(name, value string) { sh.variables[name] = value }

func (sh *shell) get(name string) string { return sh.variables[name] }

func (sh *shell) environment() (all config.Environment) {
	for name, value := range sh.variables {
		all = append(all, name+"="+value)
	}
	return all
}

// caretaker runs a command and returns its exit code and what it wrote.
func (sh *shell) caretaker(command ...string) (code int, out, errOut string) {
	sh.t.Helper()
	var stdout, stderr bytes.Buffer
	code = cli.Run(context.Background(), command, cli.Streams{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Env: sh.environment(),
	})
	return code, stdout.String(), stderr.String()
}

// want runs a command, given as words, and fails the test unless it exits so and its whole output has these parts.
func (sh *shell) want(code int, command string, parts ...string) string {
	sh.t.Helper()
	got, out, errOut := sh.caretaker(strings.Fields(command)...)
	if got != code {
		sh.t.Errorf("%s: exit %d, want %d\n%s%s", command, got, code, out, errOut)
	}
	for _, p := range parts {
		if !strings.Contains(out+errOut, p) {
			sh.t.Errorf("%s: %q is not in\n%s%s", command, p, out, errOut)
		}
	}
	return out
}

// database makes a database of a template and names it in the environment.
func (sh *shell) database(name string, from devdb.Template) *pgx.Conn {
	sh.t.Helper()
	url := sh.databases.Clone(sh.t, from)
	sh.set("CARETAKER_DATABASES_"+strings.ToUpper(name)+"_URL", url)
	conn := servicetest.Connect(sh.t, url)
	return conn
}

// configured makes an empty database that the environment names.
func (sh *shell) configured(name string) *pgx.Conn {
	sh.t.Helper()
	return sh.database(name, devdb.Template{Name: "bare"})
}

// defined writes definitions that the environment names.
func (sh *shell) defined(content string) string {
	sh.t.Helper()
	file := filepath.Join(sh.t.TempDir(), "definitions.yml")
	assert.NoError(sh.t, os.WriteFile(file, []byte(content), 0o600))
	sh.set("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", file)
	return file
}

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// migrate migrates the databases that the environment names.
func (sh *shell) migrate() {
	sh.t.Helper()
	sh.want(0, "migrate")
}

const worker = "loose_foreign_keys_cleanup"

// screen is what a command that runs on has written so far.
type screen struct{ servicetest.Buffer }

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
		if !sh.apart {
			r.exit <- cli.Run(ctx, command, streams)
			return
		}
		c := sh.child(ctx, strings.Join(command, " "))
		c.Stdout, c.Stderr = &r.out, &r.log
		_ = c.Run()
		r.exit <- c.ProcessState.ExitCode()
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

// newPrepared is newShell with the database that prepared makes.
func newPrepared(t *testing.T) (*shell, *pgx.Conn) {
	t.Helper()
	sh := newShell(t)
	return sh, sh.prepared()
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
