package repo_test

import (
	"errors"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// purgedChild deletes the rows of c, to one of which the protected user 2 refers, and returns the error. before is done
// before the database is opened, after when the run has read what there is.
func purgedChild(t *testing.T, before, after string) (*bench, error) {
	t.Helper()
	b := installed(servicetest.Parallel(t))
	b.exec(`CREATE TABLE users (id bigint PRIMARY KEY); CREATE TABLE namespaces (id bigint PRIMARY KEY); INSERT INTO users VALUES (1), (2);
		CREATE TABLE c (id bigint PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c SELECT i, 7 FROM generate_series(1, 2) i;
		ALTER TABLE users ADD c_id bigint REFERENCES c ON DELETE CASCADE; UPDATE users SET c_id = id;
		INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by) VALUES ('user', 2, 'r', 'ann')`)
	b.exec(before)
	child := assert.Must(servicetest.Open(t, b.url).Children.Children(t.Context(), []lfk.Definition{
		{Table: "c", Columns: []string{"p_id"}, Parent: "p", OnDelete: lfk.AsyncDelete},
	}))(t)[0]
	b.exec(after)
	permit := by(b.acquire("a", time.Hour).Fence)
	permit.Limits = fencing.Limits{Statement: devdb.WaitTimeout, Lock: devdb.WaitTimeout}
	_, err := child.PurgeAll(t.Context(), lfk.Purge{Permit: permit, Keys: lfk.IntKeys(7), Cap: 100}, lfk.DeletedRecords{}, nil)
	return b, err
}

func TestPurge_ProtectedRowsAreFoundWhateverTheNamesOfTheirTables(t *testing.T) {
	const view = `ALTER TABLE users RENAME TO people; CREATE VIEW users AS SELECT * FROM people`
	for name, c := range map[string]struct{ before, after, table, err string }{
		"renamed, a view in its place": {after: view, table: "people", err: "user 2 is protected"},
		"so at the start":              {before: view, table: "people", err: "a protected user or group cannot be looked up"},
		"in the second schema of search_path": {before: `CREATE SCHEMA more; ALTER TABLE users SET SCHEMA more;
			DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, more', current_database()); END $$`, table: "more.users", err: "user 2 is protected"},
		"with ids of a domain": {before: `CREATE DOMAIN user_id AS bigint; ALTER TABLE users ALTER id TYPE user_id`, table: "users", err: "user 2 is protected"},
		"hidden by a schema of the role's name": {
			after: `DO $$ BEGIN EXECUTE format('CREATE SCHEMA %I; CREATE TABLE %1$I.users (id bigint PRIMARY KEY)', current_user); END $$`,
			table: "public.users", err: "user 2 is protected",
		},
		"hidden by a temporary table": {
			after: `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				CREATE TEMP TABLE IF NOT EXISTS users AS SELECT * FROM public.users; RETURN NULL; END $$;
				CREATE TRIGGER f BEFORE DELETE ON c EXECUTE FUNCTION f()`,
			table: "public.users", err: "user 2 is protected",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := purgedChild(t, c.before, c.after)
			servicetest.WantError(t, err, c.err)
			b.want(`SELECT count(*) FROM `+c.table, "2")
		})
	}
}

// A server may say in another language that a text is no number, with other quotes.
func TestPurge_ChecksAreRecognizedInEveryLanguage(t *testing.T) {
	_, err := purgedChild(t, `TRUNCATE maintenance.protected_targets`, `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		RAISE 'ungültige Eingabesyntax für Typ integer: »%»', 'the parent row of a recorded key exists' USING ERRCODE = '22P02'; END $$;
		CREATE TRIGGER f AFTER DELETE ON c EXECUTE FUNCTION f()`)
	assert.That(t, errors.Is(err, dberr.ErrLivingParent), "%v", err)
}
