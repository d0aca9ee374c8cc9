package orphans

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// Name is the worker's name everywhere: its key, lease, label and page.
const Name = "orphan_audit"

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"30 3 * * 0" enabled:"false"`
	// Fix queues records of the missing parents, so that loose_foreign_keys_cleanup cleans up the
	// orphans. If false, the worker only counts orphans.
	Fix *bool `key:"fix" default:"false"`
	// BatchSize is the number of keys that a statement checks.
	BatchSize int `key:"batch_size" default:"1000" max:"10000"`
	// MaxRecords is the maximum number of records that a run queues.
	MaxRecords int `key:"max_records" default:"100000" max:"100000000"`
	// MaxRuntime is the maximum duration of a run. The next run continues.
	MaxRuntime time.Duration `key:"max_runtime" default:"10m" max:"24h"`
}

// audit is the worker. The package comment is its design.
type audit struct {
	run.Deps
	config Config
}

// New makes the worker. It has no jobs.
func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	a := &audit{d, config}
	return &run.Worker{
		Name:       Name,
		Config:     config.WorkerConfig,
		Missing:    a.missing,
		Uses:       a.uses,
		MaxRuntime: func(string, map[string]bool) (time.Duration, bool) { return config.MaxRuntime, false },
		Work:       a.work,
		Backlog:    a.backlog,
		Optional:   true,
		Actions:    map[string]string{"orphaned_rows": "orphaned", "queued_records": "queued"},
	}, nil, nil
}

// uses returns the reads of children and parents, and the records. It returns none for a disabled
// worker.
func (a *audit) uses(string) (all []catalog.Use) {
	if a.config.Disabled() {
		return nil
	}
	for _, key := range a.LooseForeignKeys() {
		all = append(all, catalog.Use{Table: key.Table, Rights: catalog.ToRead},
			catalog.Use{Table: key.Parent, Rights: catalog.ToRead})
	}
	for i, queue := range lfk.QueueTables() {
		switch {
		case a.fixes() && i == 0:
			all = append(all, catalog.Use{Table: queue, Rights: catalog.MaySelect | catalog.MayInsert})
		case a.fixes():
			all = append(all, catalog.Use{Table: queue, Rights: catalog.MaySelect})
		}
	}
	return all
}

// missing returns the setting to make if no definitions are loaded, else "".
func (a *audit) missing(context.Context) (string, error) {
	if a.LooseForeignKeys() == nil {
		return "set workers.loose_foreign_keys_cleanup.definitions to the definitions file", nil
	}
	return "", nil
}

// backlog counts the remaining work of the current audit.
func (a *audit) backlog(
	ctx context.Context, d *repo.Database,
) (b control.Backlog, remark string, err error) {
	b, err = d.Orphans.AuditBacklog(ctx)
	return b, "", err
}

// fixes reports whether records are written.
func (a *audit) fixes() bool { return a.config.Fix != nil && *a.config.Fix }
