package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/caretaker-go/caretaker/repo"
)

// River writes the end of an attempt into its job by the job's id. An attempt of a process that was stopped for too long
// has lost its job to another one, whose job would end with it, and be worked by two. So each end names its attempt, and
// is written while the attempt still has the job, or not at all.
//
// River takes jobs by a statement of its own, whose answer it awaits for 10 s. One that is too late, or whose process is
// killed, would leave jobs as running that nobody works until they are taken for dead.

// fencedDriver is River's, except for the begins and the ends of attempts.
type fencedDriver struct {
	*riverpgxv5.Driver
	database *repo.Database
}

func newFencedDriver(main *repo.Database) *fencedDriver {
	return &fencedDriver{riverpgxv5.New(main.Pool()), main}
}

// GetExecutor is called by River.
func (d *fencedDriver) GetExecutor() riverdriver.Executor {
	return &fencedExecutor{d.Driver.GetExecutor(), d}
}

type fencedExecutor struct {
	riverdriver.Executor
	driver *fencedDriver
}

// JobGetAvailable takes jobs that it returns, or none.
func (e *fencedExecutor) JobGetAvailable(ctx context.Context, p *riverdriver.JobGetAvailableParams) (jobs *riverdriver.JobGetAvailableResult, err error) {
	err = e.driver.database.FetchJobs(ctx, func(tx repo.Tx) (err error) {
		jobs, err = e.driver.UnwrapExecutor(tx).JobGetAvailable(ctx, p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("fetch jobs: %w", err)
	}
	return jobs, nil
}

// attemptKey of the metadata is where the end of an attempt names it, by the microseconds of its begin.
const attemptKey = "attempted_at"

// nameAttempt lets the end of an attempt name it.
func nameAttempt(ctx context.Context, row *rivertype.JobRow) error {
	return river.MetadataSet(ctx, attemptKey, row.AttemptedAt.UnixMicro())
}

// JobSetStateIfRunningMany writes the ends of attempts that still have their jobs.
func (e *fencedExecutor) JobSetStateIfRunningMany(ctx context.Context, p *riverdriver.JobSetStateIfRunningManyParams) (rows []*rivertype.JobRow, err error) {
	ends, err := takeNames(p)
	if err != nil {
		return nil, err
	}
	err = e.driver.database.EndAttempts(ctx, ends, func(tx repo.Tx, held []repo.AttemptOf) error {
		mine := only(p, ends, held)
		if len(mine.ID) == 0 {
			return nil
		}
		rows, err = e.driver.UnwrapExecutor(tx).JobSetStateIfRunningMany(ctx, mine)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("write the ends of %d attempts: %w", len(p.ID), err)
	}
	return rows, nil
}

// takeNames reads which attempts the ends are of, for each of them. One that has no name, and so no time, has not been
// worked: River itself has refused it.
func takeNames(p *riverdriver.JobSetStateIfRunningManyParams) ([]repo.AttemptOf, error) {
	ends := make([]repo.AttemptOf, len(p.ID))
	for i, id := range p.ID {
		ends[i].ID = id
		if !p.MetadataDoMerge[i] {
			continue
		}
		var name struct {
			Micros int64 `json:"attempted_at"`
		}
		if err := json.Unmarshal(p.MetadataUpdates[i], &name); err != nil {
			return nil, fmt.Errorf("metadata of job %d: %w", id, err)
		}
		if name.Micros != 0 {
			ends[i].AttemptedAt = time.UnixMicro(name.Micros)
		}
	}
	return ends, nil
}

// only are the ends of those attempts that still have their jobs.
func only(p *riverdriver.JobSetStateIfRunningManyParams, ends, held []repo.AttemptOf) *riverdriver.JobSetStateIfRunningManyParams {
	out := &riverdriver.JobSetStateIfRunningManyParams{Now: p.Now, Schema: p.Schema}
	for i, end := range ends {
		lost := !slices.ContainsFunc(held, func(h repo.AttemptOf) bool {
			return h.ID == end.ID && h.AttemptedAt.Equal(end.AttemptedAt)
		})
		if lost && !end.AttemptedAt.IsZero() {
			continue
		}
		out.ID = append(out.ID, end.ID)
		out.Attempt = append(out.Attempt, p.Attempt[i])
		out.ErrData = append(out.ErrData, p.ErrData[i])
		out.FinalizedAt = append(out.FinalizedAt, p.FinalizedAt[i])
		out.MetadataDoMerge = append(out.MetadataDoMerge, p.MetadataDoMerge[i])
		out.MetadataUpdates = append(out.MetadataUpdates, p.MetadataUpdates[i])
		out.ScheduledAt = append(out.ScheduledAt, p.ScheduledAt[i])
		out.State = append(out.State, p.State[i])
	}
	return out
}
