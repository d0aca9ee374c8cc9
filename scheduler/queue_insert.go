package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/caretaker-go/caretaker/repo"
)

// Keys of a job's metadata, which ListJobs reads too.
const (
	runIDKey       = "run_id"
	traceParentKey = "traceparent"
	outcomeKey     = "outcome"
	reasonKey      = "reason"
)

// candidate is a job with what makes it unique.
type candidate struct {
	unique string
	params river.InsertManyParams
}

// prepare converts jobs to River's, sorted and without duplicates: transactions that insert the
// same jobs then lock in the same order, and River refuses a job that comes twice in a statement.
func (q *Queue) prepare(
	ctx context.Context, tx repo.Tx, jobs []repo.Job,
) ([]river.InsertManyParams, error) {
	candidates := make([]candidate, 0, len(jobs))
	for _, j := range jobs {
		if waits, err := waits(ctx, tx, j.Args); err != nil {
			return nil, err
		} else if waits {
			continue
		}
		opts, err := options(j)
		if err != nil {
			return nil, err
		}
		params := river.InsertManyParams{Args: j.Args, InsertOpts: opts}
		candidates = append(candidates, candidate{uniqueBy(j.Args), params})
	}
	slices.SortStableFunc(candidates,
		func(a, b candidate) int { return cmp.Compare(a.unique, b.unique) })
	candidates = slices.CompactFunc(candidates,
		func(a, b candidate) bool { return a.unique == b.unique })
	params := make([]river.InsertManyParams, len(candidates))
	for i, c := range candidates {
		params[i] = c.params
	}
	return params, nil
}

// waits reports whether the same job waits already, for kinds that may be queued again while one
// runs: River's own uniqueness always includes running jobs.
func waits(ctx context.Context, tx repo.Tx, args repo.JobArgs) (bool, error) {
	if _, special := args.(repo.UniqueWhileWaiting); !special {
		return false, nil
	}
	encoded, err := json.Marshal(args)
	if err != nil {
		return false, fmt.Errorf("arguments of %s: %w", args.Kind(), err)
	}
	return repo.JobWaits(ctx, tx, args.Kind(), string(encoded))
}

// uniqueBy is a job's kind and the values of the fields in River's unique key: those tagged, else
// all.
func uniqueBy(args repo.JobArgs) string {
	var key, all strings.Builder
	v := reflect.ValueOf(args)
	for i := range v.NumField() {
		fmt.Fprintf(&all, " %v", v.Field(i))
		if v.Type().Field(i).Tag.Get("river") == "unique" {
			fmt.Fprintf(&key, " %v", v.Field(i))
		}
	}
	if key.Len() == 0 {
		return args.Kind() + all.String()
	}
	return args.Kind() + key.String()
}

func options(j repo.Job) (*river.InsertOpts, error) {
	origin := map[string]string{}
	for key, value := range map[string]string{runIDKey: j.RunID, traceParentKey: j.TraceParent} {
		if value != "" {
			origin[key] = value
		}
	}
	metadata, err := json.Marshal(origin)
	if err != nil {
		return nil, fmt.Errorf("metadata of %s: %w", j.Args.Kind(), err)
	}
	opts := &river.InsertOpts{
		Metadata: metadata, Queue: queueOf(j.Args.Kind()), ScheduledAt: j.ScheduledAt,
	}
	if _, special := j.Args.(repo.UniqueWhileWaiting); !special {
		opts.UniqueOpts = river.UniqueOpts{ByArgs: true, ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateScheduled,
			rivertype.JobStateRetryable, rivertype.JobStateRunning,
		}}
	}
	return opts, nil
}

// queueOf is the queue of a kind: destroy_group has its own, with a limit of two at a time in a
// process.
func queueOf(kind string) string {
	if kind == (repo.DestroyGroup{}).Kind() {
		return kind
	}
	return river.QueueDefault
}

// dueByDatabase takes the times at which a job was created and is due from the database's clock,
// unless it starts later. River uses the host's clock for a nil time, the database's for a zero
// one.
type dueByDatabase struct{ river.HookDefaults }

// InsertBegin implements River's hook before a job is inserted.
func (*dueByDatabase) InsertBegin(_ context.Context, params *rivertype.JobInsertParams) error {
	params.CreatedAt = &time.Time{}
	if params.State == rivertype.JobStateAvailable {
		params.ScheduledAt = &time.Time{}
	}
	return nil
}
