package server

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/caretaker-go/caretaker/access"
	settings "github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) { servicetest.Main(m) }

const worker = "loose_foreign_keys_cleanup"

// fixture is a server on a database of its own, and a client.
type fixture struct {
	maintenancev1.MaintenanceServiceClient
	t       *testing.T
	sql     *pgx.Conn
	main    *repo.Database
	service *service.Service
	server  *Server
	conn    *grpc.ClientConn
	log     *servicetest.Buffer
}

// definitions has one loose foreign key of table c.
const definitions = "c:\n  - {table: p, column: p_id, on_delete: async_delete}\n"

// start starts a server with one loose foreign key.
func start(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	return startWith(t, definitions, insecure.NewCredentials(), change...)
}

func startWith(t *testing.T, definitions string, transport credentials.TransportCredentials, change ...func(*Config)) *fixture {
	t.Helper()
	t.Parallel()
	url := servicetest.Databases.Clone(t, servicetest.Migrated("queue"))
	f := &fixture{
		t: t, log: &servicetest.Buffer{}, sql: servicetest.Connect(t, url), main: servicetest.Open(t, url),
	}
	f.exec(`CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	f.newService(definitions)
	f.serve(transport, change)
	return f
}

func (f *fixture) newService(definitions string) {
	f.t.Helper()
	config := service.Config{Databases: []*repo.Database{f.main}, Logger: slog.New(slog.DiscardHandler)}
	servicetest.Audited(&config)
	if definitions != "" {
		service.Settings[lfk.Config](&config).Definitions = servicetest.Definitions(f.t, definitions)
	}
	settings.Defaults(&config)
	made := assert.Must(service.New(config))(f.t)
	f.service = made
	f.t.Cleanup(func() { _ = made.Shutdown(context.Background()) })
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.sql.Exec(context.Background(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// slow gives the worker children of one parent that take 50 ms each.
func (f *fixture) slow(children int) {
	f.t.Helper()
	f.exec(`INSERT INTO c (p_id) SELECT 1 FROM generate_series(1, $1)`, children)
	f.exec(`CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.05); RETURN OLD; END';
		CREATE TRIGGER nap BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION nap()`)
	f.exec(`INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1)`)
}

// gate gives the worker a child whose deletion waits until the gate is lifted.
func (f *fixture) gate() (lift func()) {
	f.t.Helper()
	f.exec(`INSERT INTO c (p_id) VALUES (1); CREATE TABLE gate AS SELECT 1 AS shut;
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN WHILE EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN OLD; END';
		CREATE TRIGGER wait BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION wait();
		INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1)`)
	return func() { f.exec(`DELETE FROM gate`) }
}

// failure checks the code and the ErrorInfo of an error, and that it shows nothing of SQL or
// drivers.
func (f *fixture) failure(err error, code codes.Code, reason string) *status.Status {
	f.t.Helper()
	s := status.Convert(err)
	var info *errdetails.ErrorInfo
	for _, d := range s.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			info = i
		}
	}
	assert.That(f.t, s.Code() == code && info.GetReason() == reason && info.GetDomain() == "caretaker",
		"got %v with %v, want %s, %s", err, info, code, reason)
	for _, forbidden := range []string{"SQLSTATE", "SELECT", "pgx", "pgconn", "127.0.0.1:"} {
		assert.Lacks(f.t, s.Message(), forbidden)
	}
	return s
}

// violates checks that an error names the field.
func (f *fixture) violates(err error, field string) {
	f.t.Helper()
	s := f.failure(err, codes.InvalidArgument, "INVALID_ARGUMENT")
	bad := detail[*errdetails.BadRequest](s)
	assert.That(f.t, len(bad.GetFieldViolations()) == 1 &&
		bad.GetFieldViolations()[0].GetField() == field, "got %v, want the field %s", s, field)
}

// detail is the detail of its type, or nil.
func detail[T any](s *status.Status) (found T) {
	for _, d := range s.Details() {
		if v, ok := d.(T); ok {
			found = v
		}
	}
	return found
}

// keys know the clients of a configuration.
func keys(t *testing.T, c access.Config) *access.Keys {
	t.Helper()
	return assert.Must(access.New(c))(t)
}

// eventually waits until a condition holds.
func (f *fixture) eventually(what string, holds func() bool) {
	f.t.Helper()
	devdb.Eventually(f.t, what, holds)
}

func (f *fixture) serve(transport credentials.TransportCredentials, change []func(*Config)) {
	f.t.Helper()
	config := Config{Service: f.service, Logger: slog.New(slog.NewJSONHandler(f.log, nil))}
	for _, c := range change {
		c(&config)
	}
	f.server = assert.Must(New(config))(f.t)
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(listener) }()
	f.conn = assert.Must(grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(transport),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })))(f.t)
	f.MaintenanceServiceClient = maintenancev1.NewMaintenanceServiceClient(f.conn)
	server, conn := f.server, f.conn
	f.t.Cleanup(func() {
		_ = conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
		defer cancel()
		server.Stop(ctx)
		if err := <-served; err != nil {
			f.t.Error(err)
		}
	})
}

// count is the number that a query returns.
func (f *fixture) count(sql string) (n int) {
	f.t.Helper()
	if err := f.sql.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func timeOf(t *testing.T, text string) time.Time {
	t.Helper()
	return assert.Must(time.Parse(time.RFC3339, text))(t)
}
