package gitlab

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/protection"
)

// PlaceholderRules decide which details of placeholder users are eligible.
type PlaceholderRules struct {
	// MaxAttempts is the number of attempts from which a row is never selected again.
	MaxAttempts int
	// RetryPeriod must have passed since the last attempt, strictly.
	RetryPeriod time.Duration
	// Now is T, the start of the run by main's clock.
	Now time.Time
	// Tables are the existing tables of main.
	Tables PlaceholderTables
	// Kept are the users that protections keep.
	Kept protection.Keeping
}

// PlaceholderTables are the existing tables and columns of placeholder users in main.
type PlaceholderTables struct {
	// Missing is the missing table or column that they require, empty if none is missing.
	Missing string
	// MissingOptional names the other missing ones.
	MissingOptional string
	fillings        []string
}

func placeholderEssentials() []catalog.Reference {
	return catalog.ReferencesOf("users", "id user_type state",
		"import_placeholder_user_details", "id placeholder_user_id namespace_id deletion_attempts last_deletion_attempt_at")
}

// PlaceholderTables reads the catalogue. If our role cannot read a table, the error is
// [dberr.ErrForbidden].
func (d Placeholders) PlaceholderTables(ctx context.Context) (PlaceholderTables, error) {
	p, err := catalog.Present(ctx, d.db, placeholderEssentials(), catalog.TouchOption("import_placeholder_user_details", "$2"),
		catalog.ValueOption("import_placeholder_user_details", "d", "created_at", "NULL::timestamptz"))
	if err != nil {
		return PlaceholderTables{}, err
	}
	return PlaceholderTables{p.Missing(ctx, placeholderEssentials()...), p.MissingOptional, p.Fillings}, nil
}

// PlaceholderUses are how the cleanup and its jobs use a database: main may have the tables of ci
// and sec.
func PlaceholderUses(database string) (uses []catalog.Use) {
	main := database == "main"
	if main {
		uses = append(uses, catalog.Use{Table: "users", Rights: catalog.ToChange}, catalog.Use{
			Table: "import_placeholder_user_details", Rights: catalog.ToChange, Columns: "placeholder_user_id",
		})
	}
	for _, list := range placeholderReferences() {
		for _, r := range list.columns {
			if main || list.database == database {
				uses = append(uses, catalog.Use{Table: r.Table, Rights: catalog.ToRead, Columns: r.Column})
			}
		}
	}
	return uses
}

func (t PlaceholderTables) fill(sql string, pairs ...string) string {
	return stmt.Fill(sql, append(pairs, t.fillings...)...)
}

func (r PlaceholderRules) args(more ...any) []any {
	ids, _ := listed(r.Kept, control.KindUser)
	return append([]any{r.MaxAttempts, r.Now, r.RetryPeriod, ids}, more...)
}

// eligibleForDeletionSQL selects details without a namespace, with remaining attempts, never
// attempted or long enough ago, of users without a veto. $1 to $4 are the rules, $5 the id after
// which the page begins, $6 its size.
const eligibleForDeletionSQL = `
  (SELECT id, placeholder_user_id, deletion_attempts, last_deletion_attempt_at, namespace_id
   FROM import_placeholder_user_details
   WHERE namespace_id IS NULL AND deletion_attempts < $1
     AND last_deletion_attempt_at IS NULL AND id > $5::bigint
     AND (placeholder_user_id <> ALL ($4::bigint[])) IS NOT FALSE
    AND NOT ` + cancelledUser + `placeholder_user_id OFFSET 0)
   ORDER BY id LIMIT $6)
  UNION
  (SELECT id, placeholder_user_id, deletion_attempts, last_deletion_attempt_at, namespace_id
   FROM import_placeholder_user_details
   WHERE namespace_id IS NULL AND deletion_attempts < $1
     AND last_deletion_attempt_at < $2::timestamptz - $3::interval AND id > $5::bigint
     AND (placeholder_user_id <> ALL ($4::bigint[])) IS NOT FALSE
    AND NOT ` + cancelledUser + `placeholder_user_id OFFSET 0)
   ORDER BY id LIMIT $6)
  ORDER BY id LIMIT $6`

// foundPlaceholdersSQL replaces it when a replica has found the ids $5.
const foundPlaceholdersSQL = `SELECT id FROM unnest($5::bigint[]) AS found (id)`

// claimPlaceholdersSQL counts an attempt for a page of eligible rows. It skips locked rows until
// the next run. It repeats the condition under the lock, so that no row is ever counted twice. The
// first column is the last examined id, claimed or not.
const claimPlaceholdersSQL = `
WITH eligible_for_deletion AS MATERIALIZED ({eligible}
),
free AS MATERIALIZED (
  SELECT d.id FROM import_placeholder_user_details d
  WHERE d.id = ANY (ARRAY(SELECT id FROM eligible_for_deletion))
  ORDER BY d.id FOR UPDATE SKIP LOCKED
),
claimed AS (
  UPDATE import_placeholder_user_details d
  SET deletion_attempts = d.deletion_attempts + 1,
    last_deletion_attempt_at = $2{import_placeholder_user_details.touched}
  FROM free
  WHERE d.id = free.id AND d.namespace_id IS NULL AND d.deletion_attempts < $1
    AND (d.last_deletion_attempt_at IS NULL
      OR d.last_deletion_attempt_at < $2::timestamptz - $3::interval)
    AND (d.placeholder_user_id <> ALL ($4::bigint[])) IS NOT FALSE
    AND NOT ` + cancelledUser + `d.placeholder_user_id OFFSET 0)
  RETURNING d.id, d.placeholder_user_id, d.deletion_attempts
)
SELECT page.last, c.id IS NOT NULL,
  coalesce(c.id, 0), coalesce(c.placeholder_user_id, 0), coalesce(c.deletion_attempts, 0)
FROM (SELECT max(id) AS last FROM eligible_for_deletion) page LEFT JOIN claimed c ON true
ORDER BY c.id`

// BeforePlaceholders is an id below all details of placeholder users, whose ids may be 0 or less.
const BeforePlaceholders = int64(-1 << 63)

// PlaceholderClaim is a page of claimed details.
type PlaceholderClaim struct {
	// Claimed counts the rows, Scheduled the jobs that were inserted for them.
	Claimed, Scheduled int
	// Exhausted lists the users whose last attempt this is.
	Exhausted []int64
}

// PlaceholderPage selects the next details to claim: up to limit after an id or, unless found is
// nil, those of these ids.
type PlaceholderPage struct {
	rules PlaceholderRules
	after int64
	limit int
	found []int64
}

const findPlaceholdersSQL = `SELECT id FROM (` + eligibleForDeletionSQL + `) eligible_for_deletion ORDER BY id`

// PlaceholderPage searches the replica for up to limit eligible details after an id. If the primary
// must be read, or the replica finds none, the claim both finds and claims them in one statement.
func (d Placeholders) PlaceholderPage(
	ctx context.Context, rules PlaceholderRules, after int64, limit int, l fencing.Limits,
) PlaceholderPage {
	page := PlaceholderPage{rules: rules, after: after, limit: limit}
	q := pg.NewQuery("find placeholder users", findPlaceholdersSQL, rules.args(after, limit)...)
	pg.OnReplica(ctx, d.db, l, q, pg.CollectInto(&page.found, pgx.RowTo[int64]))
	if len(page.found) == 0 {
		page.found = nil
	}
	return page
}

// PlaceholdersWithIDs returns the page of the eligible details with these ids.
func PlaceholdersWithIDs(rules PlaceholderRules, ids []int64) PlaceholderPage {
	return PlaceholderPage{rules: rules, found: ids}
}

// statement returns the claim of the page.
func (p PlaceholderPage) statement() (sql string, args []any) {
	eligible, args := eligibleForDeletionSQL, p.rules.args(p.after, p.limit)
	if p.found != nil {
		eligible, args = foundPlaceholdersSQL, p.rules.args(p.found)
	}
	return p.rules.Tables.fill(claimPlaceholdersSQL, "{eligible}", eligible), args
}

// PlaceholderJobs are the jobs for claimed details: Origin, with arguments and a start. The job of
// the row with index i in the run starts at T + i × Interval. First is the index of the page's
// first row.
type PlaceholderJobs struct {
	Queue    jobqueue.Queue
	Origin   jobqueue.Job
	First    int
	Interval time.Duration
	// Next receives the position of the next page as soon as the page is claimed. A caller can claim
	// the next page while this page's jobs are inserted. Nothing is sent if the page has no candidate.
	// It must have room for one value.
	Next chan<- PlaceholderPosition
}

// PlaceholderPosition is the start of a page: after the id After. The first row that it claims has
// the index First in the run.
type PlaceholderPosition struct {
	After int64
	First int
}

// ClaimPlaceholders counts an attempt for the eligible details of a page and queues their jobs, in
// one transaction. If the server ends that because of a deadlock, the retry claims no additional
// row. The next page relies on their number.
func (d Placeholders) ClaimPlaceholders(
	ctx context.Context, p fencing.Permit, page PlaceholderPage, to PlaceholderJobs,
) (claim PlaceholderClaim, err error) {
	reported := false
	err = pg.Transaction(ctx, d.db, "claim placeholder users", p, func(ctx context.Context, tx *pg.Changing) error {
		claim = PlaceholderClaim{}
		tx.Touches("import_placeholder_user_details")
		last, rows, err := page.claim(ctx, tx)
		if err != nil || last == nil {
			return err
		}
		if !reported {
			reported, page.found = true, make([]int64, len(rows))
			for i, row := range rows {
				page.found[i] = row.id
			}
			to.Next <- PlaceholderPosition{*last, to.First + len(rows)}
		}
		if len(rows) == 0 {
			return nil
		}
		claim.Claimed, claim.Exhausted = len(rows), page.rules.exhausted(rows)
		claim.Scheduled, err = to.Queue.InsertJobs(ctx, tx, to.jobs(page.rules, rows))
		tx.Count("scheduled_jobs", claim.Scheduled)
		tx.Count("exhausted_users", len(claim.Exhausted))
		tx.Count("updated_rows import_placeholder_user_details", claim.Claimed)
		return err
	})
	return claim, err
}

// claimedPlaceholder is a row that has been claimed.
type claimedPlaceholder struct {
	id, user int64
	attempts int
}

// claim claims the rows of the page, in the order of their ids. last is the last candidate, claimed
// or not, nil without candidates.
func (p PlaceholderPage) claim(
	ctx context.Context, tx pgx.Tx,
) (last *int64, claimed []claimedPlaceholder, err error) {
	sql, args := p.statement()
	rows, err := tx.Query(ctx, sql, args...) //nolint:rowserrcheck // ForEachRow returns it
	if err != nil {
		return nil, nil, err
	}
	var row claimedPlaceholder
	var is bool
	_, err = pgx.ForEachRow(rows, []any{&last, &is, &row.id, &row.user, &row.attempts}, func() error {
		if is {
			claimed = append(claimed, row)
		}
		return nil
	})
	return last, claimed, err
}

// exhausted returns the users of the rows whose last attempt this is.
func (r PlaceholderRules) exhausted(rows []claimedPlaceholder) (users []int64) {
	for _, row := range rows {
		if row.attempts >= r.MaxAttempts {
			users = append(users, row.user)
		}
	}
	return users
}

// jobs returns the jobs of a page's rows.
func (to PlaceholderJobs) jobs(rules PlaceholderRules, rows []claimedPlaceholder) []jobqueue.Job {
	jobs := make([]jobqueue.Job, len(rows))
	for i, row := range rows {
		jobs[i] = to.Origin
		jobs[i].Args = jobqueue.DeletePlaceholderUser{PlaceholderUserID: row.user}
		jobs[i].ScheduledAt = rules.Now.Add(time.Duration(to.First+i) * to.Interval)
	}
	return jobs
}

// A dry run queries which jobs a claim would insert: one per user, none if one already waits.
const previewPlaceholdersSQL = `
WITH eligible_for_deletion AS MATERIALIZED (` + eligibleForDeletionSQL + `
)
SELECT e.id, e.placeholder_user_id, e.deletion_attempts + 1 >= $1, EXISTS (
  SELECT FROM maintenance.river_job j
  WHERE j.kind = 'delete_placeholder_user'
    AND j.state IN ('available', 'pending', 'scheduled', 'retryable', 'running')
    AND j.args @> jsonb_build_object('placeholder_user_id', e.placeholder_user_id))
FROM eligible_for_deletion e ORDER BY e.id`

// PlaceholderPreview is the effect that ClaimPlaceholders would have on a row.
type PlaceholderPreview struct {
	ID, User int64
	// Exhausted: this would be its last attempt. Waiting: a job for the user already waits.
	Exhausted, Waiting bool
}

// PreviewPlaceholders returns the effects that ClaimPlaceholders would have on the rows of the next
// page, by their ids. It returns none if no candidate remains.
func (d Placeholders) PreviewPlaceholders(
	ctx context.Context, rules PlaceholderRules, after int64, limit int, l fencing.Limits,
) ([]PlaceholderPreview, error) {
	q := pg.NewQuery("preview placeholder users", previewPlaceholdersSQL, rules.args(after, limit)...)
	return pg.ReadRows(ctx, d.db, l, q, pgx.RowToStructByPos[PlaceholderPreview])
}

// placeholderBacklogSQL counts up to the cap. $6 is the cap + 1.
const placeholderBacklogSQL = `
WITH pending AS MATERIALIZED (
  SELECT {d.created_at} AS created_at FROM import_placeholder_user_details d
  WHERE d.namespace_id IS NULL AND d.deletion_attempts < $1 LIMIT $6
),
eligible_for_deletion AS MATERIALIZED (` + eligibleForDeletionSQL + `
)
SELECT (SELECT count(*) FROM pending), (SELECT count(*) FROM eligible_for_deletion),
  (SELECT min(created_at) FROM pending),
  (SELECT count(*) FROM (
    SELECT FROM import_placeholder_user_details WHERE namespace_id IS NULL AND deletion_attempts >= $1 LIMIT $6) dead),
  clock_timestamp()`

// PlaceholderBacklog counts the details without a namespace.
func (d Placeholders) PlaceholderBacklog(
	ctx context.Context, rules PlaceholderRules, l fencing.Limits,
) (b control.Backlog, err error) {
	q := pg.NewQuery("count the backlog", rules.Tables.fill(placeholderBacklogSQL),
		rules.args(BeforePlaceholders, control.BacklogCap+1)...)
	_, err = pg.ReplicaRow(ctx, d.db, l, q, &b.Pending, &b.Due, &b.OldestAt, &b.Dead, &b.ReadAt)
	return b.Capped(), err
}

// waitingPlaceholdersSQL begins with the few vetoed ones, and reads others in the order of their
// last attempts.
const waitingPlaceholdersSQL = `
WITH vetoed AS MATERIALIZED (
  SELECT v.user_id, min(v.code || ': ' || v.detail) AS words FROM ` + userVetoesSQL + ` v
  WHERE NOT $6::boolean GROUP BY v.user_id
),
waits AS (
  (SELECT v.user_id, v.words, d.id, d.created_at, d.last_deletion_attempt_at, d.deletion_attempts
   FROM vetoed v CROSS JOIN LATERAL (
     SELECT d.id, {d.created_at} AS created_at, d.last_deletion_attempt_at, d.deletion_attempts
     FROM import_placeholder_user_details d
     WHERE d.placeholder_user_id = v.user_id AND d.namespace_id IS NULL
       AND d.deletion_attempts < $1 OFFSET 0) d
   ORDER BY v.user_id, d.id LIMIT $7)
  UNION ALL
  (SELECT d.placeholder_user_id, NULL, d.id, {d.created_at}, d.last_deletion_attempt_at,
     d.deletion_attempts
   FROM import_placeholder_user_details d
   WHERE d.namespace_id IS NULL AND CASE WHEN $6::boolean THEN d.deletion_attempts >= $1
     ELSE d.deletion_attempts < $1
       AND d.last_deletion_attempt_at >= $2::timestamptz - $3::interval
       AND d.placeholder_user_id NOT IN (SELECT v.user_id FROM vetoed v) END
   ORDER BY d.last_deletion_attempt_at, d.id LIMIT $7)
)
SELECT w.user_id, to_jsonb(u) ->> 'username', w.created_at,
  CASE WHEN NOT $6::boolean AND w.words IS NULL THEN w.last_deletion_attempt_at + $3::interval END,
  coalesce(w.words,
    w.deletion_attempts || CASE WHEN w.deletion_attempts = 1 THEN ' attempt' ELSE ' attempts' END)
FROM waits w LEFT JOIN users u ON u.id = w.user_id
ORDER BY w.words IS NULL, w.last_deletion_attempt_at, w.id LIMIT $7`

// WaitingPlaceholders returns the first 100 placeholder users without a namespace that are dead,
// vetoed or waiting for their next attempt, the oldest last attempt first.
func (d Placeholders) WaitingPlaceholders(
	ctx context.Context, rules PlaceholderRules, dead bool, l fencing.Limits,
) ([]jobqueue.Waiting, error) {
	sql := rules.Tables.fill(waitingPlaceholdersSQL)
	_, texts := listed(rules.Kept, control.KindUser)
	args := rules.args(texts, dead, jobqueue.WaitingShown)
	rows, err := pg.ReadRows(ctx, d.db, l, pg.NewQuery("list pending placeholder users", sql, args...),
		pgx.RowToStructByPos[jobqueue.WaitingRow])
	return jobqueue.ReadWaiting("placeholder", rows), err
}
