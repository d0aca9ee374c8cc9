package job_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestJobs(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	servicetest.Cases(t, e, map[string]func(*servicetest.Estate){
		"are listed newest first by kind and state":                                        areListedNewestFirstByKindAndState,
		"show what became of them and are counted by kind and arguments":                   showWhatBecameOfThemAndAreCountedByKindAndArguments,
		"a retry lets it be worked now":                                                    letsItBeWorkedNow,
		"a retry leaves attempts that are there and names the job that does the same":      leavesAttemptsThatAreThereAndNamesTheJobThatDoesTheSame,
		"every kind can be worked and one that this version does not know fails and waits": everyKindCanBeWorkedAndOneThatThisVersionDoesNotKnowFailsAndWaits,
		"rescued job says why": rescuedJobSaysWhy,
	})
}

func areListedNewestFirstByKindAndState(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue)
	e.Insert(servicetest.Placeholders(4)...)
	e.Insert(jobqueue.Job{Args: jobqueue.DestroyGroup{GroupID: 9}, ScheduledAt: time.Now().Add(time.Hour)})
	e.EndJob(2, "discarded")
	e.EndJob(4, "completed")
	for want, f := range map[string]job.Filter{
		"[5 4 3 2 1]": {},
		"[4 3 2 1]":   {Kind: "delete_placeholder_user"},
		"[3 1]":       {State: "available"},
		"[5]":         {State: "scheduled"},
		"[2]":         {Kind: "delete_placeholder_user", State: "discarded"},
		"[]":          {Kind: "destroy_group", State: "running"},
		"[2 1]":       {After: 3},
		"[1]":         {After: 3, State: "available"},
		"[5 4]":       {Limit: 2},
	} {
		if f.Limit == 0 {
			f.Limit = 100
		}
		jobs := assert.Must(s.Jobs(context.Background(), f))(e.T)
		ids := []int64{}
		for _, j := range jobs {
			ids = append(ids, j.ID)
		}
		assert.Equal(e.T, fmt.Sprint(ids), want, f)
	}
	// An unknown kind or state is told what is allowed.
	for field, names := range map[string]string{
		"kind":  "delete_placeholder_user delete_user destroy_group continue_inactive_token_deletion",
		"state": "available scheduled retryable running completed cancelled discarded",
	} {
		filters := map[string]job.Filter{"kind": {Kind: "delete_everything"}, "state": {State: "COMPLETED"}}
		_, err := s.Jobs(context.Background(), filters[field])
		wantInvalid(e.T, err, field)
		servicetest.WantError(e.T, err, strings.Fields(names)...)
	}
}

// wantInvalid fails the test at once unless an error reports that a field of a request is invalid.
func wantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	invalid, ok := errors.AsType[*fault.InvalidArgumentError](err)
	assert.Require(t, ok && invalid.Field == field, "%s: got %v", field, err)
}

func showWhatBecameOfThemAndAreCountedByKindAndArguments(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue)
	e.Insert(servicetest.Placeholders(1)...)
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'cancelled', attempt = 2, attempted_at = '2040-01-02', finalized_at = '2040-01-03',
		metadata = metadata || '{"outcome": "refused", "reason": "STILL_REFERENCED"}',
		errors = ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 1, "error": "a database is unreachable", "trace": ""}'::jsonb]`)
	j := assert.Must(s.Jobs(context.Background(), job.Filter{Limit: 1}))(e.T)[0]
	assert.That(e.T, j.ID == 1 && j.Kind == "delete_placeholder_user" && j.State == "cancelled" &&
		string(j.Args) == `{"placeholder_user_id": 1}` && j.Attempt == 2 && j.MaxAttempts == 25 &&
		j.Outcome == "refused" && j.Reason == "STILL_REFERENCED" && j.RunID == "run", "got %+v", j)
	assert.That(e.T, j.AttemptedAt.UTC().Day() == 2 && j.FinalizedAt.UTC().Day() == 3 && !j.CreatedAt.IsZero() && !j.ScheduledAt.IsZero(),
		"times of %+v", j)
	if len(j.Errors) != 1 || j.Errors[0].Attempt != 1 || j.Errors[0].Error != "a database is unreachable" || j.Errors[0].At.Year() != 2040 {
		e.T.Errorf("errors %+v", j.Errors)
	}

	e.Insert(servicetest.Placeholders(3)...)
	e.Insert(jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 1, Reason: "a"}}, jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 2, Reason: "b"}})
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'discarded', finalized_at = now() WHERE id NOT IN (1, 4)`)
	for _, c := range []struct {
		kind, args string
		want       int64
	}{{"delete_placeholder_user", "{}", 2}, {"delete_user", `{"reason": "b"}`, 1}, {"delete_user", `{"reason": "c"}`, 0}} {
		n, err := e.Open[0].Jobs.CountDiscardedJobs(context.Background(), c.kind, c.args)
		assert.That(e.T, n == c.want && err == nil, "%+v: %d, %v", c, n, err)
	}
}

func letsItBeWorkedNow(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue)
	for state, changed := range map[string]bool{
		"available": false, "running": false,
		"scheduled": true, "retryable": true, "pending": true, "completed": true, "cancelled": true, "discarded": true,
	} {
		e.Exec("main", `TRUNCATE maintenance.river_job RESTART IDENTITY`)
		e.Insert(servicetest.Placeholders(1)...)
		e.Exec("main", `UPDATE maintenance.river_job SET state = $1::text::maintenance.river_job_state, attempt = 25, attempted_at = now(),
				scheduled_at = CASE WHEN $1 = 'available' THEN now() - interval '1 h' ELSE now() + interval '1 h' END,
				metadata = metadata || '{"outcome": "refused", "reason": "STILL_REFERENCED"}',
				finalized_at = CASE WHEN $1 IN ('completed', 'cancelled', 'discarded') THEN now() END`, state)
		before := e.Value("main", `SELECT to_jsonb(j) FROM maintenance.river_job j`)
		job := assert.Must(s.RetryJob(context.Background(), 1))(e.T)
		if !changed {
			e.Want("main", `SELECT to_jsonb(j) FROM maintenance.river_job j`, before)
			assert.That(e.T, job.State == state && job.MaxAttempts == 25, "got %+v", job)
			continue
		}
		assert.That(e.T, job.State == "available" && job.MaxAttempts == 26 && job.Outcome == "" &&
			job.Reason == "" && job.RunID == "run" && job.FinalizedAt.IsZero(), "got %+v", job)
		e.Want("main", `SELECT scheduled_at <= now() FROM maintenance.river_job`, "true")
	}
}

func leavesAttemptsThatAreThereAndNamesTheJobThatDoesTheSame(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue)
	e.Insert(servicetest.Placeholders(1)...)
	e.EndJob(1, "cancelled")
	again := assert.Must(s.RetryJob(context.Background(), 1))(e.T)
	assert.That(e.T, again.Attempt == 1 && again.MaxAttempts == 25, "got %+v", again)
	e.EndJob(1, "discarded")
	e.Insert(servicetest.Placeholders(1)...)
	_, err := s.RetryJob(context.Background(), 1)
	duplicate, ok := errors.AsType[*job.DuplicateJobError](err)
	assert.That(e.T, ok && duplicate.ID == 2, "got %v, want that job 2 waits", err)
	e.Want("main", `SELECT string_agg(state::text, ',' ORDER BY id) FROM maintenance.river_job`, "discarded,available")
	_, err = s.RetryJob(context.Background(), 77)
	assert.That(e.T, errors.Is(err, fault.ErrUnknownJob), "got %v, want ErrUnknownJob", err)
	_, err = s.RetryJob(context.Background(), 0)
	wantInvalid(e.T, err, "id")
}

func TestMain(m *testing.M) {
	servicetest.FarFromUTC()
	servicetest.Main(m)
}

func everyKindCanBeWorkedAndOneThatThisVersionDoesNotKnowFailsAndWaits(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue)
	for _, args := range []jobqueue.Args{
		jobqueue.ContinueInactiveTokenDeletion{}, jobqueue.DeletePlaceholderUser{}, jobqueue.DeleteUser{}, jobqueue.DestroyGroup{},
	} {
		works := s.JobKinds()
		assert.That(e.T, slices.Contains(works, args.Kind()), "works %v, without %s", works, args.Kind())
	}
	e.Insert(jobqueue.Job{Args: unknownArgs{}})
	n := e.Work(s, "unknown")
	assert.Require(e.T, n == 1, "%d jobs worked, want 1", n)
	e.Want("main", `SELECT concat_ws(': ', metadata ->> 'outcome', errors[1] ->> 'error') FROM maintenance.river_job`,
		`failed: this version of caretaker does not know the job kind "unknown"`)
}

type unknownArgs struct{}

func (unknownArgs) Kind() string { return "unknown" }

func rescuedJobSaysWhy(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue)
	for name, c := range map[string]struct{ change, outcome, reason string }{
		"tried again":                     {`state = 'retryable'`, "failed", "PROCESS_GONE"},
		"given up":                        {`state = 'discarded', finalized_at = now()`, "discarded", "PROCESS_GONE"},
		"at work again, and nobody knows": {`state = 'running'`, "failed", "PROCESS_GONE"},
		"done after all": {`state = 'completed', finalized_at = now(),
			metadata = metadata || '{"outcome": "succeeded", "reason": ""}'`, "succeeded", ""},
	} {
		e.Exec("main", `TRUNCATE maintenance.river_job`)
		e.Insert(servicetest.Placeholders(1)...)
		e.Exec("main", `UPDATE maintenance.river_job SET state = 'running', attempt = 25, attempted_at = now(),
			metadata = metadata || '{"outcome": "failed", "reason": "KEPT_BY_TRIGGER"}'`)
		e.Rescue()
		e.Exec("main", `UPDATE maintenance.river_job SET `+c.change)
		jobs, err := s.Jobs(context.Background(), job.Filter{Limit: 1})
		assert.Require(e.T, err == nil && len(jobs) == 1, "got %+v, %v", jobs, err)
		j := jobs[0]
		assert.That(e.T, j.Outcome == c.outcome && j.Reason == c.reason, "%s: %q, %q, want %q, %q", name, j.Outcome, j.Reason, c.outcome, c.reason)
		assert.That(e.T, len(j.Errors) == 1 && j.Errors[0].Attempt == 25 && j.Errors[0].Error == reasons.ProcessGoneText,
			"%s: errors %+v", name, j.Errors)
	}
}

func TestDeleteUser_TheLogOfAFailureHasNoWordsOfTriggers(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	e.User(7, 0, 1)
	e.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a secret of %', NEW.email; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION refuse()`)
	log := &servicetest.Buffer{}
	if _, err := e.AttemptOf(e.Service("", e.WithQueue, servicetest.TracedLogTo(log)), servicetest.Authorized(7), nil); err == nil {
		t.Fatal("the trigger has refused nothing")
	}
	text := log.String()
	assert.That(t, !strings.Contains(text, "secret") && strings.Contains(text, "on main: P0001 raise_exception, table users"), "logged %s", text)
}
