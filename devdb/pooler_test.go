package devdb

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestFault_Pooler_SharesFewConnections(t *testing.T) {
	t.Parallel()
	p := assert.Must(databases.Cluster(t).Pooler(t.Context(), 2))(t)
	seen := map[string]bool{}
	for range 5 {
		conn := assert.Must(pgx.Connect(t.Context(), p.URL("postgres")))(t)
		var pid string
		assert.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_backend_pid()::text").Scan(&pid))
		seen[pid] = true
		defer func() { _ = conn.Close(t.Context()) }()
	}
	assert.That(t, len(seen) <= 2, "%d connections to the server", len(seen))
	assert.NoError(t, errors.Join(p.Stop(), p.Stop()))
	assert.That(t, !answers(p.URL("postgres")), "it still answers")
	if left, _ := filepath.Glob(p.folder.path); len(left) > 0 {
		t.Errorf("left on disk: %s", left)
	}
}

func TestFault_Pooler_StartsAgainAfterACrash(t *testing.T) {
	t.Parallel()
	p := assert.Must(databases.Cluster(t).Pooler(t.Context(), 2))(t)
	conn := assert.Must(pgx.Connect(t.Context(), p.URL("postgres")))(t)
	crashed := exec.CommandContext(t.Context(), "pkill", "-KILL", "-f", "^[^ ]*pgbouncer "+p.folder.path)
	if out, err := crashed.CombinedOutput(); err != nil {
		t.Fatalf("end PgBouncer: %v %s", err, out)
	}
	Eventually(t, "the connection to break", func() bool { return conn.Ping(t.Context()) != nil })
	Eventually(t, "PgBouncer to answer again", func() bool { return answers(p.URL("postgres")) })
	assert.NoError(t, p.Stop())
	assert.That(t, !answers(p.URL("postgres")), "it still answers")
}

func TestPooler_WhereThereIsNoneTheErrorSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	if found, err := findPooler(t.TempDir(), []string{t.TempDir()}); !errors.Is(err, errNoPooler) {
		t.Errorf("%q, %v", found, err)
	}
}
