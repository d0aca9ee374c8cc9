package loosefk_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestLooseForeignKeysCleanup_ASchemaThatComesBeforeTheQueueIsReported(t *testing.T) {
	t.Parallel()
	const without, second = "is in schema public, but schema caretaker comes first", "was public.loose_foreign_keys_deleted_records, now it resolves to caretaker."
	for name, c := range map[string]struct {
		seen   bool // a run has worked the queue before
		second bool // the schema gets a queue of its own
		want   string
	}{
		"before the first run": {false, false, without},
		"after a run":          {true, false, without},
		"with a second queue":  {true, true, second},
	} {
		t.Run(name, func(t *testing.T) {
			e := withOwnQueue(servicetest.New(servicetest.Parallel(t), "", "main"))
			keys, s := e.Keys(servicetest.OneChild), e.Service(servicetest.OneChild)
			if c.seen {
				deleteParents(e, 1, 1)
				wantRun(t, s, "processed_records=1 deleted_rows=1")
			}
			e.Exec("main", `CREATE SCHEMA caretaker`) // the name of the role
			_, err := keys.Install(t.Context())
			servicetest.WantError(t, err, without, "search_path so that public comes first")
			if c.second {
				e.Exec("main", `CREATE TABLE loose_foreign_keys_deleted_records (LIKE public.loose_foreign_keys_deleted_records INCLUDING ALL) PARTITION BY LIST (partition);
					CREATE TABLE first PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (1)`)
			}
			r := servicetest.RunBatch(t, s, "main")
			servicetest.WantState(t, r, repo.RunFailed)
			assert.That(t, strings.Contains(r.Error, c.want), "error %q", r.Error)
			assert.Equal(t, servicetest.Status(t, s).Failing.Class, service.FailureSchema)
			_, lint := keys.Lint(t.Context())
			servicetest.WantError(t, lint, c.want)

			keys.Schema = "caretaker"
			assert.Must(keys.Install(t.Context()))(t)
			servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
		})
	}
}

func TestLooseForeignKeysCleanup_TheQueueOfAnotherApplicationIsNoneOfOurs(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Add("ci", servicetest.Databases.Clone(t, servicetest.Migrated("")))
	e.Exec("ci", `CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c VALUES (1), (2);
		CREATE SCHEMA other; CREATE TABLE other.loose_foreign_keys_deleted_records (partition bigint) PARTITION BY LIST (partition)`)
	e.Deleted("main", "p", 1, 1)
	wantRun(t, e.Service(servicetest.OneChild), "processed_records=1 deleted_rows=1")
}
