package servicetest

import (
	"context"
	"maps"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
)

// Server is a PostgreSQL of a test's own, which it may stop and kill.
type Server struct {
	t       *testing.T
	Cluster *devdb.Cluster
	dir     string
	// settings of the server besides devdb's.
	Settings map[string]string
}

// NewServer starts it with a database, migrated, with the reference schema's queue.
func NewServer(t *testing.T, database string, settings ...map[string]string) *Server {
	t.Helper()
	s := &Server{t: t, dir: filepath.Join(t.TempDir(), "server"), Settings: map[string]string{}}
	for _, more := range settings {
		maps.Copy(s.Settings, more)
	}
	s.Start()
	t.Cleanup(s.Stop)
	ctx := context.Background()
	if err := s.Cluster.CreateDatabase(ctx, database); err != nil {
		t.Fatal(err)
	}
	url := s.Cluster.URL(database)
	if err := devdb.LoadSchema(ctx, url, "main"); err != nil {
		t.Fatal(err)
	}
	if err := Migrated("").Prepare(ctx, url); err != nil {
		t.Fatal(err)
	}
	return s
}

// Start starts the server, again after Stop or Kill.
func (s *Server) Start() {
	s.t.Helper()
	devdb.Eventually(s.t, "the processes of the killed server to end", func() bool {
		cluster, err := devdb.Start(context.Background(), devdb.Config{Dir: s.dir, Settings: s.Settings})
		if err != nil && strings.Contains(err.Error(), "shared memory block") {
			return false
		}
		if err != nil {
			s.t.Fatal(err)
		}
		s.Cluster = cluster
		return true
	})
}

// Stop stops it and breaks its connections.
func (s *Server) Stop() {
	s.t.Helper()
	if err := s.Cluster.Stop(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// Kill ends the server as a power failure would. It can be started again as soon as its other processes have noticed.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.Cluster.Kill(); err != nil {
		s.t.Fatal(err)
	}
	s.Stop()
}

// Pooled puts PgBouncer, with so many connections to each database, between the services and the databases of an estate.
// The test's own connections are direct.
func Pooled(t *testing.T, size int, clones map[string]string) (*Estate, *devdb.Pooler) {
	t.Helper()
	p, err := Databases.Cluster(t).Pooler(t.Context(), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	e := &Estate{T: t, URLs: map[string]string{}, Through: map[string]string{}, SQL: map[string]*pgx.Conn{}}
	for _, name := range []string{"main", "ci", "sec"} {
		if url := clones[name]; url != "" {
			e.AddThrough(name, url, p.URL(DatabaseOf(url)))
		}
	}
	return e, p
}

// DatabaseOf is the name of the database of a URL.
func DatabaseOf(url string) string {
	name, _, _ := strings.Cut(path.Base(url), "?")
	return name
}
