package servicetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// NewPlaceholders has organization 1 and a namespace 1 of an import.
func NewPlaceholders(t *testing.T) *Estate {
	t.Helper()
	return New(t, "main", "main").Placeholders()
}

// Placeholders makes them on an estate.
func (e *Estate) Placeholders() *Estate {
	e.T.Helper()
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now());
		INSERT INTO namespaces (id, name, path, type, organization_id) VALUES (1, 'import', 'import', 'Group', 1)`)
	return e
}

// Detail makes a user and its detail with the same id. attempted is an SQL expression.
func (e *Estate) Detail(id, attempts int, attempted string, userType ...int) {
	e.T.Helper()
	kind := 15
	if len(userType) > 0 {
		kind = userType[0]
	}
	e.Exec("main", `INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id) VALUES ($1, $2, $2, 0, 'active', $3, 1)`,
		id, fmt.Sprintf("u%d", id), kind)
	e.Exec("main", `INSERT INTO import_placeholder_user_details (id, placeholder_user_id, deletion_attempts, organization_id, last_deletion_attempt_at, created_at, updated_at)
		VALUES ($1, $1, $2, 1, `+attempted+`, now(), now())`, id, attempts)
}

// RunPlaceholders runs placeholder_user_cleanup and fails the test on an error.
func RunPlaceholders(t *testing.T, s *service.Service, dry bool) run.Run {
	t.Helper()
	r, err := s.RunBatch(context.Background(), run.Request{Worker: PlaceholderUsers, DryRun: dry})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// JobsOfPlaceholders are the users with a job delete_placeholder_user, in the order of their times.
const JobsOfPlaceholders = `SELECT string_agg(args ->> 'placeholder_user_id', ' ' ORDER BY scheduled_at) FROM maintenance.river_job WHERE kind = 'delete_placeholder_user'`

// StateOfJobs are all jobs: kind, state and reason.
const StateOfJobs = `SELECT string_agg(kind || ' ' || state || coalesce(' ' || nullif(metadata ->> 'reason', ''), ''), ', ' ORDER BY id) FROM maintenance.river_job`
