package service

import (
	"context"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// manyFailed is from how many failed jobs on they are counted once in [run.DearAge].
const manyFailed = 1000

// failedJobs keeps the failed jobs of the last status call where there are many: to count them all
// for each call would be most of its time.
type failedJobs struct {
	mu    sync.Mutex
	until time.Time
	all   []repo.FailedJobs
}

func (f *failedJobs) read(ctx context.Context, main *repo.Database) ([]repo.FailedJobs, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Now().Before(f.until) {
		return f.all, nil
	}
	all, err := main.FailedJobs(ctx)
	if err != nil {
		return nil, err
	}
	var jobs int64
	for _, kind := range all {
		jobs += kind.Waiting + kind.Discarded
	}
	if f.all = all; jobs >= manyFailed {
		f.until = time.Now().Add(run.DearAge)
	}
	return all, nil
}
