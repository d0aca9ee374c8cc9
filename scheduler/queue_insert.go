package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// Keys of a job's metadata, which ListJobs also reads.
const (
	runIDKey       = "run_id"
	requestedByKey = "requested_by"
	traceParentKey = "traceparent"
	outcomeKey     = "outcome"
	reasonKey      = "reason"
)

// candidate is a job with the values of its unique key: its kind, and arguments as JSON.
type candidate struct {
	kind, unique string
	params       river.InsertManyParams
}

// compare orders two candidates by kind, then by unique arguments.
func (c candidate) compare(other candidate) int {
	return cmp.Or(cmp.Compare(c.kind, other.kind), cmp.Compare(c.unique, other.unique))
}

// prepare converts jobs to River's, sorted and without duplicates. Transactions that insert the
// same jobs then lock in the same order, and River refuses duplicates in one statement.
func (q *Queue) prepare(
	ctx context.Context, tx jobqueue.Tx, jobs []jobqueue.Job,
) ([]river.InsertManyParams, error) {
	candidates := make([]candidate, 0, len(jobs))
	for _, j := range jobs {
		unique, err := uniqueArgs(j.Args)
		if err != nil {
			return nil, err
		}
		opts, err := options(j)
		if err != nil {
			return nil, err
		}
		params := river.InsertManyParams{Args: j.Args, InsertOpts: opts}
		candidates = append(candidates, candidate{j.Args.Kind(), unique, params})
	}
	slices.SortStableFunc(candidates, candidate.compare)
	candidates = slices.CompactFunc(candidates,
		func(a, b candidate) bool { return a.compare(b) == 0 })
	candidates, err := dropDuplicates(ctx, tx, candidates)
	if err != nil {
		return nil, err
	}
	params := make([]river.InsertManyParams, len(candidates))
	for i, c := range candidates {
		params[i] = c.params
	}
	return params, nil
}

// dropDuplicates drops jobs of which the same job is running. For kinds that allow a second job
// while one runs, it drops jobs of which the same job is waiting. River's uniqueness always
// includes running jobs.
//
// River also drops the former, but waits for the transaction in which the running job works. That
// transaction may wait for ours, or longer than we can.
func dropDuplicates(ctx context.Context, tx jobqueue.Tx, jobs []candidate) ([]candidate, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	kinds, args := make([]string, len(jobs)), make([]string, len(jobs))
	for i, c := range jobs {
		kinds[i], args[i] = c.kind, c.unique
	}
	running, err := jobqueue.RunningJobs(ctx, tx, kinds, args)
	if err != nil {
		return nil, fmt.Errorf("cannot find running jobs: %w", err)
	}
	kept := jobs[:0]
	for i, c := range jobs {
		duplicate := slices.Contains(running, int64(i+1))
		if _, special := c.params.Args.(jobqueue.UniqueWhileWaiting); special {
			if duplicate, err = jobqueue.Waits(ctx, tx, c.kind, c.unique); err != nil {
				return nil, err
			}
		}
		if !duplicate {
			kept = append(kept, c)
		}
	}
	return kept, nil
}

// uniqueArgs returns the arguments in River's unique key as JSON: the tagged ones, otherwise all.
func uniqueArgs(args jobqueue.Args) (string, error) {
	unique := map[string]any{}
	v := reflect.ValueOf(args)
	for i := range v.NumField() {
		if tag := v.Type().Field(i).Tag; tag.Get("river") == "unique" {
			unique[tag.Get("json")] = v.Field(i).Interface()
		}
	}
	var value any = unique
	if len(unique) == 0 {
		value = args
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("cannot encode the arguments of %s: %w", args.Kind(), err)
	}
	return string(encoded), nil
}

// options returns River's options for a job: its origin as metadata, its queue and its due time. A
// job is unique by its arguments until it ends, except for kinds with a rule of their own.
func options(j jobqueue.Job) (*river.InsertOpts, error) {
	origin := map[string]string{}
	for key, value := range map[string]string{
		runIDKey: j.RunID, traceParentKey: j.TraceParent, requestedByKey: j.RequestedBy,
	} {
		if value != "" {
			origin[key] = value
		}
	}
	metadata, err := json.Marshal(origin)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the metadata of %s: %w", j.Args.Kind(), err)
	}
	opts := &river.InsertOpts{
		Metadata: metadata, Queue: queueOf(j.Args.Kind()), ScheduledAt: j.ScheduledAt,
	}
	if _, special := j.Args.(jobqueue.UniqueWhileWaiting); !special {
		opts.UniqueOpts = river.UniqueOpts{ByArgs: true, ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateScheduled,
			rivertype.JobStateRetryable, rivertype.JobStateRunning,
		}}
	}
	return opts, nil
}

// queueOf returns the queue of a kind. destroy_group has its own queue, with a limit of two
// concurrent jobs per process.
func queueOf(kind string) string {
	if kind == (jobqueue.DestroyGroup{}).Kind() {
		return kind
	}
	return river.QueueDefault
}

// databaseClock sets the creation and due times of a job by the database's clock, unless the job
// starts later. River uses the host's clock for a nil time, the database's for a zero time.
type databaseClock struct{ river.HookDefaults }

// InsertBegin implements River's hook before a job is inserted.
func (*databaseClock) InsertBegin(_ context.Context, params *rivertype.JobInsertParams) error {
	params.CreatedAt = &time.Time{}
	if params.State == rivertype.JobStateAvailable {
		params.ScheduledAt = &time.Time{}
	}
	return nil
}
