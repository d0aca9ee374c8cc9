package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/devdb/oracle"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// pipelineRun is an estate that services work on, one after the other.
type pipelineRun struct {
	*servicetest.Estate
	oracle  *oracle.Estate
	service *service.Service
	// change is how services are configured. onRound, if set, is called before each round.
	change  []func(*service.Config)
	onRound func(round int)
}

func TestFault_PipelineOracle_EverythingThatMustGoGoesAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 20261} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			p := &pipelineRun{Estate: servicetest.New(t, "all", "main"), oracle: oracle.Generate(seed, 1)}
			p.load()
			if seed > 1 {
				p.Route("main", "users", "organization:organization_id")
				p.Route("main", "projects", "organization:organization_id", "namespace:namespace_id")
				p.Route("main", "namespaces", "organization:organization_id")
				p.Route("main", "merge_requests", "project:target_project_id", "user:author_id")
			}
			p.Exec("main", `INSERT INTO snippets (id, author_id, organization_id) SELECT id, id, organization_id FROM users WHERE id <= 60 AND user_type = 0;
				INSERT INTO snippet_repositories (snippet_id, disk_path) SELECT id, '@snippets/' || id FROM snippets WHERE id <= 60`)
			p.Witness()
			p.Gate("main", "notes")
			p.replace()
			p.killed(func(o *servicetest.Order) { o.Worker, o.Database = servicetest.GhostUsers, "" })
			p.toTheEnd()
			p.compare()
			p.WantReceipts()
			p.Want("main", `SELECT count(DISTINCT run_id) > 0 AND count(DISTINCT job_id) > 0 FROM maintenance.receipts WHERE requested_by = 'alice'`, "true")
			p.WantOutside(10)
		})
	}
}

func TestFault_PipelineOracle_NarrowIDsMakeNoDifference(t *testing.T) {
	t.Parallel()
	p := &pipelineRun{Estate: servicetest.New(t, "all", "main"), oracle: oracle.Generate(31, 1)}
	p.Exec("main", devdb.NarrowKeys("%"))
	p.load()
	p.Gate("main", "notes")
	p.replace()
	p.toTheEnd()
	p.compare()

	const wide = 3_000_000_000
	p.Exec("main", `DELETE FROM maintenance.river_job`)
	assert.NoError(t, p.oracle.LoadMarkedGroup(context.Background(), p.databases(), 130))
	p.Insert(jobqueue.Job{Args: jobqueue.DestroyGroup{GroupID: wide, UserID: new(int64(oracle.Owner))}},
		jobqueue.Job{Args: jobqueue.DestroyGroup{GroupID: 130, UserID: new(int64(wide))}},
		jobqueue.Job{Args: jobqueue.DeleteUser{UserID: wide, DeletedByID: new(int64(oracle.Owner)), Reason: jobqueue.TokenDeletionReason}},
		jobqueue.Job{Args: jobqueue.DeleteUser{UserID: oracle.Second, DeletedByID: new(int64(wide)), Reason: "asked for"}},
		jobqueue.Job{Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: wide}})
	for kind, want := range map[string]string{
		"destroy_group": "DELETING_USER_MISSING, TARGET_GONE", "delete_user": "NOT_AUTHORIZED, TARGET_GONE", "delete_placeholder_user": "TARGET_GONE",
	} {
		p.Work(p.service, kind)
		p.Want("main", `SELECT string_agg(coalesce(metadata ->> 'reason', state::text), ', ' ORDER BY metadata ->> 'reason') FROM maintenance.river_job WHERE kind = '`+kind+`'`, want)
	}
}

func TestFault_PipelineOracle_TerminatedBackendsMakeNoDifference(t *testing.T) {
	t.Parallel()
	p := &pipelineRun{Estate: servicetest.New(t, "all", "main"), oracle: oracle.Generate(37, 1)}
	p.load()
	p.Gate("main", "notes")
	p.replace()
	q := p.Queue()
	assert.NoError(t, q.Start(p.service))
	stop := storm(p.Estate)
	for round := range 40 {
		for _, w := range servicetest.Configured(t, p.service) {
			_, err := p.service.RunBatch(t.Context(), run.Request{Worker: w, DryRun: round%3 == 0})
			_, held := errors.AsType[*fault.LeaseHeldError](err)
			assert.That(t, err == nil || held || errors.Is(err, fault.ErrUnreachable), "%s: %v", w, err)
		}
		p.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now() - interval '1 minute'`)
		p.Exec("main", `UPDATE maintenance.river_job SET state = 'available', scheduled_at = now() WHERE state IN ('retryable', 'scheduled')`)
	}
	stop()
	assert.NoError(t, q.Stop(t.Context()))
	p.Open[0].Jobs.Pool().Reset()
	p.Exec("main", `UPDATE maintenance.river_job SET state = 'available' WHERE finalized_at IS NULL`)
	p.Exec("main", `UPDATE maintenance.leases SET expires_at = clock_timestamp() WHERE expires_at > clock_timestamp()`)
	p.toTheEnd()
	p.compare()
}

// load writes the estate's rows, and queues its jobs.
func (p *pipelineRun) load() {
	p.T.Helper()
	assert.NoError(p.T, p.oracle.Load(context.Background(), p.databases()))
	p.Insert(p.oracle.Jobs()...)
}

// databases of the estate are one here.
func (p *pipelineRun) databases() oracle.Databases {
	return oracle.Databases{Main: p.SQL["main"], CI: p.SQL["main"], Sec: p.SQL["main"]}
}

// replace shuts the service down and makes a new one.
func (p *pipelineRun) replace() {
	p.T.Helper()
	if p.service != nil {
		assert.NoError(p.T, p.service.Shutdown(context.Background()))
	}
	p.service = p.Service(devdb.Definitions(), append([]func(*service.Config){p.WithQueue}, p.change...)...)
}

// killed kills a process that is about to change a note, and lets its lease and its jobs expire.
func (p *pipelineRun) killed(order func(*servicetest.Order)) {
	p.T.Helper()
	p.Shut("main", "doomed")
	doomed := p.Start("doomed", devdb.Definitions(), order)
	p.AtGate("main", "doomed")
	doomed.Kill()
	p.Lift("main", "doomed")
	p.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed' AND state <> 'idle'`, "0")
	p.Exec("main", `UPDATE maintenance.leases SET expires_at = clock_timestamp() WHERE expires_at > clock_timestamp()`)
	p.Exec("main", `UPDATE maintenance.river_job SET state = 'available' WHERE state = 'running'`)
}

// toTheEnd does rounds of all workers and jobs, in any order, until two have changed nothing. The
// jobs of the last step of one are for the next.
func (p *pipelineRun) toTheEnd() {
	p.T.Helper()
	quiet := 0
	for round, before := 0, ""; quiet < 2; round++ {
		assert.Require(p.T, round != 15, "no end after 15 rounds")
		if p.onRound != nil {
			p.onRound(round)
		}
		steps := []func(){}
		for _, w := range servicetest.Configured(p.T, p.service) {
			steps = append(steps, func() { p.run(w) })
		}
		for _, kind := range p.service.JobKinds() {
			steps = append(steps, func() { p.Work(p.service, kind) })
		}
		p.oracle.Random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		for _, step := range steps {
			if p.oracle.Random.IntN(3) == 0 {
				p.replace()
			}
			step()
		}
		if round == 0 {
			p.killedInGroup()
		}
		after := p.digest()
		if quiet++; after != before {
			quiet = 0
		}
		before = after
	}
}

// killedInGroup kills a process in the removal of groups.
func (p *pipelineRun) killedInGroup() {
	p.T.Helper()
	p.run(servicetest.AdjournedGroups)
	if p.Value("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'destroy_group' AND state = 'scheduled'`) == "0" {
		return
	}
	p.Exec("main", `UPDATE maintenance.river_job SET state = 'available', scheduled_at = now() WHERE kind = 'destroy_group' AND state = 'scheduled'`)
	p.killed(func(o *servicetest.Order) { o.Jobs = "destroy_group" })
}

// run is one run of a worker. Those whose user could not go are due again at once.
func (p *pipelineRun) run(worker string) run.Run {
	p.T.Helper()
	p.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now() - interval '1 minute'`)
	for _, queue := range lfk.QueueTables() {
		p.Exec("main", `UPDATE `+queue+` SET consume_after = now()`)
	}
	r := assert.Must(p.service.RunBatch(context.Background(), run.Request{Worker: worker, RequestedBy: "alice"}))(p.T)
	servicetest.WantState(p.T, r, control.RunSucceeded)
	return r
}

// pending counts the records of all queues.
func (p *pipelineRun) pending() string {
	return `SELECT count(*) FROM (SELECT FROM ` +
		strings.Join(lfk.QueueTables(), ` WHERE status = 1 UNION ALL SELECT FROM `) + ` WHERE status = 1) r`
}

// digest of all that a round may change in the end. It covers every table of the application with
// its number of rows and their content. Timestamps of retried items are left out.
func (p *pipelineRun) digest() (all string) {
	p.T.Helper()
	tables := oracle.Tables()
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		all += p.Value("main", `SELECT md5(string_agg(x.r, ',' ORDER BY x.r)) FROM (`+tables[table].SQL+`) x (r)`) + " "
	}
	return all + p.Value("main", `SELECT concat_ws(' ', (`+p.pending()+`),
		(SELECT count(*) FROM maintenance.river_job WHERE state IN ('available', 'scheduled', 'retryable') AND kind <> 'delete_user'),
		(SELECT md5(string_agg(deletion_attempts::text, ',' ORDER BY id)) FROM import_placeholder_user_details))`)
}

// compare fails the test for every row that is there and must not be, and the other way round.
func (p *pipelineRun) compare() {
	p.T.Helper()
	found := assert.Must(p.oracle.Differences(context.Background(), p.databases()))(p.T)
	for _, difference := range found {
		p.T.Error(difference)
	}
	assert.Equal(p.T, p.run(servicetest.AdjournedGroups).Counts["held_groups"], p.oracle.Held(), "groups held")
	p.Want("main", p.pending(), "0")
	p.Want("main", `SELECT count(*) FROM maintenance.dead_records`, "0")
	p.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE state = 'discarded'`, "0")
}

// countRowsSQL returns SQL that counts all rows of the application, but what the deletion itself is written down in.
const countRowsSQL = `
SELECT string_agg(format('SELECT %L, count(*) FROM %s', c.relname, c.oid::regclass), ' UNION ALL ')
FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND c.relname <> ALL ('{ghost_user_migrations,loose_foreign_keys_deleted_records}')`

func (p planned) counts() (counts map[string]int64) {
	p.T.Helper()
	if *p.countSQL == "" {
		*p.countSQL = p.Value("main", countRowsSQL)
	}
	all := p.Value("main", `SELECT jsonb_object_agg(name, n) FROM (`+*p.countSQL+`) t (name, n)`)
	assert.NoError(p.T, json.Unmarshal([]byte(all), &counts))
	return counts
}
