package lfk

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// Name is the worker's name everywhere: its key, lease, label and page.
const Name = "loose_foreign_keys_cleanup"

// Rotations: the databases that a fire works.
const (
	// RotationMinute is one database per fire: the one of its minute.
	RotationMinute = "minute"
	// RotationAll is every database that has records due, one after the other.
	RotationAll = "all"
)

// Config configures the worker.
type Config struct {
	run.WorkerConfig `schedule:"* * * * *"`
	// DefinitionsFile is the path of the definitions file. Without a file, the worker is not
	// configured.
	DefinitionsFile string `key:"definitions" example:"/etc/caretaker/loose_foreign_keys.yml"`
	// Definitions define the fate of the children of deleted parents. nil means those of the file.
	Definitions *Definitions
	// Rotation is how a scheduled run chooses databases. `minute`: each run cleans one database,
	// chosen by the minute. `all`: each run cleans every database with due records.
	Rotation string `key:"rotation" default:"minute" of:"minute all"`
	// ReusedKeys is what to do if another row reuses the key of a deleted row. `hold`: hold the record
	// for `caretaker lfk reused`. `clean`: clean up the child rows. `keep`: keep the child rows and
	// delete the record. Warning: `clean` also deletes the child rows of a row that was moved (DELETE
	// and INSERT) and then updated, or moved in a subtransaction.
	ReusedKeys string `key:"reused_keys" default:"hold" of:"hold clean keep"`
	// TrackPartitions lets runs create triggers on new partitions of tracked tables. It has no
	// effect on GitLab's queue, only on a queue created by `caretaker lfk install`.
	TrackPartitions *bool `key:"track_partitions" default:"true"`
	// BatchSize is the number of records in a batch. With 500 or more, batches grow to up to 2,000
	// records while they finish quickly.
	BatchSize int `key:"batch_size" default:"500" max:"10000"`
	// MaxDeletes is the maximum number of rows that a run deletes. Turbo mode: 200000, or this
	// value if it is higher.
	MaxDeletes int64 `key:"max_deletes" default:"100000" max:"100000000"`
	// MaxUpdates is the maximum number of rows that a run nullifies or marks. Turbo mode: 150000,
	// or this value if it is higher.
	MaxUpdates int64 `key:"max_updates" default:"50000" max:"100000000"`
	// MaxRuntime is the maximum duration of a run, at least a few seconds. Turbo mode: 45s, or this
	// value if it is longer.
	MaxRuntime time.Duration `key:"max_runtime" default:"30s" max:"24h"`
	// StatementGoal is the target duration of a statement. 0 is [bulk.StatementGoal].
	StatementGoal time.Duration
}

// Keys returns the definitions. nil means none are configured. The error is that of
// [LoadDefinitions].
func (c Config) Keys() ([]lfk.Definition, error) {
	definitions, err := c.Definitions, error(nil)
	if definitions == nil && c.DefinitionsFile != "" {
		definitions, err = LoadDefinitions(c.DefinitionsFile)
	}
	if err != nil || definitions == nil {
		return nil, err
	}
	return append([]lfk.Definition{}, definitions.Keys...), nil
}

// DoneCounts are the counts of due records that a run has handled.
func (Config) DoneCounts() []string {
	return []string{
		"processed_records", "obsolete_records", "incremented_records", "rescheduled_records",
		"dead_records",
	}
}

// worker is the worker. The package comment is its design.
type worker struct {
	run.Deps
	config      Config
	sizes       *bulk.StatementSizes
	failing     *failing
	inspections inspections

	mu sync.Mutex
	// absent are the child tables that hold records, by this process's last run. nil means no run yet.
	absent []string
	// others names what else has the name of an absent child, and what to do.
	others map[string]string
	// similar has hints about absent children, "" for those without one.
	similar map[string]string
	// dropped are the child tables that databases no longer have, as the last run found.
	dropped DroppedChildren
}

// New makes the worker without connecting, with the kinds of job that belong to it. An error names
// the wrong configuration key.
func New(d run.Deps, config Config) (*run.Worker, []job.Kind, error) {
	k := &worker{
		config: config, Deps: d, sizes: bulk.NewStatementSizes(config.StatementGoal),
		failing:     newFailing(),
		inspections: inspections{since: time.Now(), of: map[string]inspection{}},
	}
	w := &run.Worker{
		Name:          Name,
		Config:        config.WorkerConfig,
		Databases:     d.Databases,
		Missing:       k.missing,
		Uses:          k.uses,
		MaxRuntime:    k.maxRuntime,
		Work:          k.work,
		Backlog:       k.backlog,
		Waiting:       k.waiting,
		FailureCounts: []string{"rescheduled_records"},
		StatusReason:  withoutHeld,
		Sli:           true,
		Actions: map[string]string{
			"deleted_rows": "deleted", "updated_rows": "updated",
			"processed_records": "processed", "obsolete_records": "obsolete", "dead_records": "dead",
			"incremented_records": "incremented", "rescheduled_records": "rescheduled",
		},
	}
	for _, database := range d.Databases {
		w.Flags = append(w.Flags, turboFlag(database.Name))
	}
	if config.Rotation == RotationAll {
		w.Due = k.due
	} else {
		w.UnscheduledRemark = k.warnOfStarvation()
	}
	return w, nil, nil
}

// turboFlag returns the feature flag of a database's turbo mode.
func turboFlag(database string) string { return "loose_foreign_keys_turbo_mode_" + database }

// uses returns what runs do to children and queues. They read parents.
func (k *worker) uses(string) (all []catalog.Use) {
	for _, queue := range lfk.QueueTables() {
		all = append(all, catalog.Use{Table: queue, Rights: catalog.ToRemove})
	}
	for _, key := range k.LooseForeignKeys() {
		rights := catalog.ToChange
		if key.OnDelete == lfk.AsyncDelete {
			rights = catalog.ToRemove
		}
		all = append(all, catalog.Use{Table: key.Table, Rights: rights},
			catalog.Use{Table: key.Parent, Rights: catalog.ToRead})
	}
	return all
}

// maxRuntime returns the time limit of a run on a database, and whether its turbo flag is on.
// Turbo allows at least 45 seconds.
func (k *worker) maxRuntime(
	database string, flags map[string]bool,
) (time.Duration, bool) {
	if flags[turboFlag(database)] {
		return max(k.config.MaxRuntime, 45*time.Second), true
	}
	return k.config.MaxRuntime, false
}

// maxRows returns the row limits of a run. Turbo allows at least 200,000 deletes and 150,000
// updates.
func (k *worker) maxRows(turbo bool) (deletes, updates int64) {
	if turbo {
		return max(k.config.MaxDeletes, 200_000), max(k.config.MaxUpdates, 150_000)
	}
	return k.config.MaxDeletes, k.config.MaxUpdates
}

// missing returns the setting to make if no definitions are loaded, else "".
func (k *worker) missing(context.Context) (string, error) {
	if k.LooseForeignKeys() == nil {
		return "set workers.loose_foreign_keys_cleanup.definitions to a file in the " +
			"format of GitLab's config/gitlab_loose_foreign_keys.yml", nil
	}
	return "", nil
}

// warnOfStarvation returns the databases that no fire works for the worker's status, and logs them.
func (k *worker) warnOfStarvation() (remark string) {
	var names []string
	for _, i := range StarvedDatabases(k.config.Schedule, len(k.Databases)) {
		names = append(names, k.Databases[i].Name)
	}
	if len(names) == 0 {
		return ""
	}
	k.Logger.Warn("schedule never reaches some databases", "worker", Name, "database", format.List(names), "schedule", k.config.Schedule)
	return fmt.Sprintf("with `rotation: minute`, the schedule %s never starts a run on %s, so runs on %[2]s "+
		"start only on request: use a schedule that runs every minute, or set "+
		"workers.loose_foreign_keys_cleanup.rotation to all",
		k.config.Schedule, format.List(names))
}

// StarvedDatabases returns those of n databases that have no turn within 24 hours from a fire of a
// schedule: of five fields, UTC. The day from the first fire has every minute of the day in which
// the schedule fires. If n minutes do not divide a day, other databases may have no turn on other
// days. An invalid schedule starves none here: [New] returns an error for it.
func StarvedDatabases(expression string, n int) []int {
	schedule, err := run.ParseSchedule(expression)
	if err != nil {
		return nil
	}
	turns := make([]bool, n)
	first := schedule.Next(time.Unix(0, 0).UTC())
	for at := first; !at.IsZero() && at.Before(first.Add(24*time.Hour)); at = schedule.Next(at) {
		turns[run.Rotation(at, n)] = true
	}
	var starved []int
	for i, had := range turns {
		if !had {
			starved = append(starved, i)
		}
	}
	return starved
}
