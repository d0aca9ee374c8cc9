// Package gitlab has the SQL of the workers for a GitLab database: groups, users, the Ghost User,
// bots and placeholders.
package gitlab

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/protection"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/rowset"
)

// The job delete_user.

// UserDeletion is the result of deleting a user.
type UserDeletion struct {
	// Skipped or Refused is the typed reason why nothing has changed, "" otherwise.
	Skipped, Refused string
	// Setting is the setting N, if it is Invalid, so that the tokens were not judged.
	Setting TokenSetting
	// Groups or Organizations are the first ten of which the user is the only owner.
	Groups, Organizations []int64
	// Protection is the protection that refuses the deletion with PROTECTED.
	Protection *pg.Protection
	// Projects are the first of the personal projects, which must be deleted first: the user is
	// blocked, and the removal has started.
	Projects []int64
	// Memberships and Authorizations are numbers of deleted rows.
	Memberships, Authorizations int64
	// Queued: the user is new in the queue of the ghost migration.
	Queued bool
}

// UserDeletionAttempt is an attempt of the job delete_user.
type UserDeletionAttempt struct {
	JobID    int64
	Args     jobqueue.DeleteUser
	Features UserFeatures
	// Queue completes the job, in the last transaction.
	Queue jobqueue.Queue
}

// deleting is the deletion of a user in its transaction.
type deleting struct {
	UserDeletion
	tx       *pg.Changing
	features UserFeatures
	args     jobqueue.DeleteUser
	userType int16
	// deletable: users of this type may be deleted.
	deletable bool
	// started reports that an earlier transaction started the deletion. Personal projects may
	// already be deleted.
	started bool
	// judging: nothing is locked or changed.
	judging bool
}

// DeleteUser blocks a user, deletes the memberships, queues the user for the ghost migration and
// completes the job, in one transaction. Otherwise it returns why not. Personal projects must be
// deleted before the memberships: while some remain the user is only blocked, and the start of the
// removal is recorded. From then on no job checks anything again: the user is deleted, or the
// removal continues. A repeated step finds its work done.
func (d Users) DeleteUser(
	ctx context.Context, p fencing.Permit, a UserDeletionAttempt,
) (UserDeletion, error) {
	var u deleting
	do := func(ctx context.Context, tx *pg.Changing) error {
		u = deleting{tx: tx, features: a.Features, args: a.Args}
		for _, step := range []func(context.Context) error{
			u.lock, u.readRemoval, u.decide,
			u.block, u.findProjects, u.leave, u.queue, u.forget,
		} {
			if err := step(ctx); err != nil || u.ended() {
				return err
			}
		}
		return a.Queue.CompleteJob(ctx, tx, a.JobID)
	}
	err := pg.Transaction(ctx, d.db, "delete user", p, do)
	return u.UserDeletion, err
}

func (u *deleting) ended() bool {
	return u.Skipped != "" || u.Refused != "" || u.Setting.Invalid != "" || len(u.Projects) > 0
}

// JudgeUserDeletion returns what [jobqueue.DeleteUser] would decide now, by the same checks. It
// locks and writes nothing, and does not check projects.
func (d Users) JudgeUserDeletion(
	ctx context.Context, args jobqueue.DeleteUser, f UserFeatures, l fencing.Limits,
) (UserDeletion, error) {
	var u deleting
	judge := func(ctx context.Context, tx *pg.Changing) error {
		u = deleting{tx: tx, features: f, args: args, judging: true}
		for _, step := range []func(context.Context) error{u.lock, u.readRemoval, u.decide} {
			if err := step(ctx); err != nil || u.ended() {
				return err
			}
		}
		return nil
	}
	l.ReadOnly = true
	err := pg.Transaction(ctx, d.db, "check the deletion of a user", fencing.Permit{Limits: l}, judge)
	return u.UserDeletion, err
}

const (
	findUserSQL = `
SELECT coalesce(u.user_type, 0), ` + migratableSQL + ` FROM users u
WHERE u.id = $1::bigint`

	lockUserSQL = findUserSQL + ` FOR UPDATE`
)

// lock prevents changes of the user. No transaction inserts rows that refer to the user by a
// foreign key until this one ends.
func (u *deleting) lock(ctx context.Context) error {
	sql := lockUserSQL
	if u.judging {
		sql = findUserSQL
	}
	err := u.tx.QueryRow(ctx, sql, u.args.UserID).Scan(&u.userType, &u.deletable)
	if errors.Is(err, pgx.ErrNoRows) {
		u.Skipped = reasons.TargetGone
		if u.judging {
			return nil
		}
		return u.forget(ctx)
	}
	return err
}

const (
	removalRequesterSQL = `SELECT deleted_by_id FROM maintenance.user_removals WHERE user_id = $1`

	recordUserRemovalSQL = `
INSERT INTO maintenance.user_removals (user_id, deleted_by_id, reason) VALUES ($1, $2, $3)
ON CONFLICT (user_id) DO NOTHING`

	forgetUserRemovalSQL = `DELETE FROM maintenance.user_removals WHERE user_id = $1`
)

// readRemoval is a separate statement: that of the lock does not see commits during its wait. A
// removal continues in the name of its first requester.
func (u *deleting) readRemoval(ctx context.Context) error {
	var by *int64
	err := u.tx.QueryRow(ctx, removalRequesterSQL, u.args.UserID).Scan(&by)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	u.started, u.args.DeletedByID = true, by
	return err
}

// forget deletes the record of the start: the removal is done, or the user is deleted.
func (u *deleting) forget(ctx context.Context) error {
	_, err := u.tx.Exec(ctx, forgetUserRemovalSQL, u.args.UserID)
	return err
}

// decide runs the checks once. Their result stays valid: personal projects may already be deleted.
func (u *deleting) decide(ctx context.Context) error {
	if u.started {
		return nil
	}
	for _, check := range []func(context.Context) error{
		u.checkType, u.checkProtection, u.checkTokens, u.authorize, u.checkSoleOwnership,
	} {
		if err := check(ctx); err != nil || u.ended() {
			return err
		}
	}
	return nil
}

// projectBotType is the user_type of project bots.
const projectBotType = 6

// checkType refuses system accounts.
func (u *deleting) checkType(context.Context) error {
	if !u.deletable {
		u.Refused = reasons.InternalUser
	}
	return nil
}

// checkProtection follows the lock on the user, so it sees every protection committed before.
func (u *deleting) checkProtection(ctx context.Context) (err error) {
	u.Protection, err = protection.Protecting(ctx, u.tx, control.KindUser, u.args.UserID)
	if u.Protection != nil {
		u.Refused = reasons.Protected
	}
	return err
}

// keptSQL locks the tokens of a bot before it judges them. $1 to $3 are the rules.
const keptSQL = `
SELECT coalesce(bool_or(keeps), false)
FROM (
  SELECT ` + keepsBotSQL + ` AS keeps FROM personal_access_tokens t
  WHERE t.user_id = $4::bigint FOR SHARE) locked`

// checkTokens: a token that was renewed since the job was queued keeps its bot.
func (u *deleting) checkTokens(ctx context.Context) error {
	if u.args.Reason != jobqueue.TokenDeletionReason {
		return nil
	}
	if u.userType != projectBotType {
		u.Skipped = reasons.NotABot
		return nil
	}
	setting, err := tokenSettingIn(ctx, u.tx, u.features)
	switch {
	case err != nil:
		return err
	case setting.Invalid != "":
		u.Setting = setting
		return nil
	case setting.Off:
		u.Skipped = reasons.SettingOff
		return nil
	}
	var kept bool
	rules := NewTokenRules(setting.Now, setting.Days)
	err = u.tx.QueryRow(ctx, keptSQL, rules.args(u.args.UserID)...).Scan(&kept)
	if kept {
		u.Skipped = reasons.TokenActive
	}
	return err
}

const activeAdminSQL = `
SELECT EXISTS (
  SELECT FROM users WHERE id = $1::bigint AND {users.admin} AND state::text = 'active')`

// authorize: with skip_authorization the actor is a label, and may be deleted.
func (u *deleting) authorize(ctx context.Context) error {
	actor := u.args.DeletedByID
	if u.args.SkipAuthorization || actor != nil && *actor == u.args.UserID {
		return nil
	}
	may := false
	if actor != nil {
		if err := u.tx.QueryRow(ctx, u.features.fill(activeAdminSQL), *actor).Scan(&may); err != nil {
			return err
		}
	}
	if !may {
		u.Refused = reasons.NotAuthorized
	}
	return nil
}

// blockUserSQL skips blocked and banned users. Not every enum has all states.
const blockUserSQL = `
UPDATE users SET state = 'blocked'{users.touched}
WHERE id = $1::bigint AND (state IS NULL OR state::text NOT IN ('blocked', 'banned'))`

// block is the first change.
func (u *deleting) block(ctx context.Context) error {
	_, err := u.tx.Change(ctx, pg.RowChange{
		Table: "users", Action: pg.ReceiptUpdated, SQL: u.features.fill(blockUserSQL), Key: "id",
		Args: []any{u.args.UserID},
	})
	return pg.About("users", err)
}

// nextPersonalProjectsSQL reads the projects after $2.
const nextPersonalProjectsSQL = `
SELECT p.id FROM projects p JOIN namespaces n ON n.id = p.namespace_id
WHERE n.type = 'User' AND n.owner_id = $1::bigint AND p.id > $2::bigint ORDER BY p.id LIMIT $3`

// PersonalProjects reads the next 100 projects, after an id, that are deleted with a user.
func (d Users) PersonalProjects(
	ctx context.Context, f UserFeatures, user, after int64, l fencing.Limits,
) ([]int64, error) {
	if !f.projects {
		return nil, nil
	}
	q := pg.NewQuery("read personal projects", nextPersonalProjectsSQL, user, after, personalProjects)
	return pg.ReadRows(ctx, d.db, l, q, pgx.RowTo[int64])
}

const personalProjectsSQL = `
SELECT p.id FROM projects p JOIN namespaces n ON n.id = p.namespace_id
WHERE n.type = 'User' AND n.owner_id = $1::bigint ORDER BY p.id LIMIT $2`

// personalProjects is the number of projects that are read, and removed, at a time.
const personalProjects = 100

// findProjects: with projects to remove, the removal starts.
func (u *deleting) findProjects(ctx context.Context) error {
	if !u.features.projects {
		return nil
	}
	rows, err := u.tx.Query(ctx, personalProjectsSQL, u.args.UserID, personalProjects)
	if err != nil {
		return err
	}
	u.Projects, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil || len(u.Projects) == 0 {
		return err
	}
	_, err = u.tx.Exec(ctx, recordUserRemovalSQL, u.args.UserID, u.args.DeletedByID, u.args.Reason)
	return err
}

const (
	leaveSQL = `
WITH picked AS MATERIALIZED (SELECT id FROM members WHERE user_id = $1::bigint LIMIT $2),
changed AS (DELETE FROM members WHERE id = ANY (ARRAY(SELECT id FROM picked)) RETURNING id AS key)
SELECT (SELECT count(*) FROM picked), (SELECT count(*) FROM changed), {summary}`

	// The last condition is for rows that change meanwhile. No index has it, so rows are found by
	// their places.
	unauthorizeSQL = `
WITH picked AS MATERIALIZED (
  SELECT ctid AS loc FROM project_authorizations WHERE user_id = $1::bigint LIMIT $2
),
changed AS (
  DELETE FROM project_authorizations
  WHERE ctid = ANY (ARRAY(SELECT loc FROM picked)) AND user_id IS NOT DISTINCT FROM $1::bigint
  RETURNING project_authorizations::text AS key
)
SELECT (SELECT count(*) FROM picked), (SELECT count(*) FROM changed), {summary}`
)

// membershipBatch is the maximum number of rows that one statement deletes.
const membershipBatch = 1000

// leave deletes the memberships.
func (u *deleting) leave(ctx context.Context) (err error) {
	if u.features.members {
		leave := pg.RowChange{Table: "members", SQL: leaveSQL, Key: "id"}
		if u.Memberships, err = u.deleteAll(ctx, leave); err != nil {
			return err
		}
	}
	if u.features.authorizations {
		u.Authorizations, err = u.deleteAll(ctx, pg.RowChange{
			Table: "project_authorizations", SQL: unauthorizeSQL, Key: "project_authorizations::text",
		})
	}
	return err
}

// maxIdleRounds is how many statements in a row may find rows and delete none, because other
// transactions delete them at the same time.
const maxIdleRounds = 3

// deleteAll repeats a statement until it finds nothing. If rows remain, the error is a
// [*rowset.KeptError].
func (u *deleting) deleteAll(ctx context.Context, c pg.RowChange) (deleted int64, err error) {
	sql := pg.Summary(u.tx.Database, stmt.Fill(c.SQL, "{summary}", pg.SummarySQL), c.Key, "true")
	for idleRounds := 0; idleRounds < maxIdleRounds; {
		var picked, missing int64
		var summary []*string
		err := u.tx.QueryRow(ctx, sql, u.args.UserID, membershipBatch).Scan(&picked, &missing, &summary)
		u.tx.Record(c.Table, pg.ReceiptDeleted, summary)
		deleted += missing
		switch {
		case err != nil, picked == 0:
			return deleted, pg.About(c.Table, err)
		case missing == 0:
			idleRounds++
		default:
			idleRounds = 0
		}
	}
	return deleted, rowset.KeptIn(ctx, u.tx, c.Table, rowset.ToDelete)
}

// queueGhostSQL keeps an existing row. The lock on the users row prevents inserts by our other
// statements, and the index, if there is one, those by any other program.
const queueGhostSQL = `
INSERT INTO {ghosts} ({columns})
SELECT {columns} FROM (
  SELECT $1::bigint AS user_id, $2::bigint AS initiator_user_id, false AS hard_delete,
    now() AS created_at, now() AS updated_at, $3::smallint AS user_type) new
WHERE NOT EXISTS (SELECT FROM {ghosts} WHERE user_id = $1::bigint) ON CONFLICT DO NOTHING`

// queue puts the user into the queue of the ghost migration.
func (u *deleting) queue(ctx context.Context) error {
	sql := stmt.Fill(queueGhostSQL,
		"{ghosts}", stmt.Quote(u.features.ghosts), "{columns}", u.features.ghostColumns)
	tag, err := u.tx.Exec(ctx, sql, u.args.UserID, u.args.DeletedByID, u.userType)
	u.Queued = tag.RowsAffected() == 1
	return pg.About(u.features.ghosts, err)
}
