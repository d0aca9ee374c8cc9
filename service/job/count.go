package job

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run"
)

// Count is the number of jobs of a kind in a state.
type Count = jobqueue.Count

// jobsSearched is the number of newest jobs that a search for the jobs of a run covers.
const jobsSearched = 20_000

// JobCounts counts the jobs that are not completed, by kind and state, up to 10,000 of each.
func (p *Pool) JobCounts(ctx context.Context) ([]Count, error) {
	return p.Main.Jobs.CountJobs(ctx)
}

// FailedJobs describes the failing jobs that a worker has queued. Its runs succeed all the same.
func (p *Pool) FailedJobs(w *run.Worker, all []jobqueue.FailedJobs) (remarks []string) {
	for _, f := range all {
		owner := p.Kinds[f.Kind].Owner
		args, err := json.Marshal(map[string]string{"reason": f.Reason})
		if owner == nil || err != nil || owner(args) != w.Name {
			continue
		}
		least := ""
		if f.AtLeast {
			least = "at least "
		}
		if f.Waiting > 0 {
			remarks = append(remarks, fmt.Sprintf("%s%s failed and will be retried "+
				"(run `caretaker jobs --kind %[3]s --state retryable`)",
				least, format.Pluralize(f.Waiting, f.Kind+" job"), f.Kind))
		}
		if f.Discarded > 0 {
			remarks = append(remarks, fmt.Sprintf("%s%s discarded "+
				"(run `caretaker jobs --kind %[3]s --state discarded`)",
				least, format.Pluralize(f.Discarded, f.Kind+" job"), f.Kind))
		}
	}
	return remarks
}

// JobsOfRun returns up to limit jobs of a run, oldest first, among the newest 20,000 of all.
func (p *Pool) JobsOfRun(ctx context.Context, record string, limit int) ([]Job, error) {
	if err := run.ValidRunID(record); err != nil {
		return nil, err
	}
	return p.Main.Jobs.JobsOfRun(ctx, record, limit, jobsSearched)
}

// Job returns a job by its id. Errors: [fault.ErrUnknownJob], [*fault.InvalidArgumentError].
func (p *Pool) Job(ctx context.Context, id int64) (Job, error) {
	if id <= 0 {
		return Job{}, errNoJobID()
	}
	job, err := p.Main.Jobs.ReadJob(ctx, id)
	return job, unknownJob(id, err)
}

// JobWorker returns the worker of a job, "" for none, or [fault.ErrUnknownJob].
func (p *Pool) JobWorker(ctx context.Context, id int64) (string, error) {
	found, err := p.Job(ctx, id)
	if err != nil {
		return "", err
	}
	owner := p.owner(Request{Kind: found.Kind, Args: found.Args})
	return cmp.Or(owner, p.Kinds[found.Kind].Worker), nil
}
