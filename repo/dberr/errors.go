// Package dberr has the errors of databases, typed, with SQLSTATE, class and a text fit for
// clients.
package dberr

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq/pqerror"

	"github.com/caretaker-go/caretaker/internal/docs"
)

// Sentinels of this package.
var (
	// ErrUnreachable means that the database did not answer: it is down, refuses us, is in recovery or
	// too busy.
	ErrUnreachable = errors.New("database unreachable")
	// ErrLeaseLost means that the lease named by a fence is no longer held. The transaction changed
	// nothing.
	ErrLeaseLost = errors.New("lease lost")
	// ErrJobLost means that the job no longer belongs to this attempt. The transaction changed
	// nothing.
	ErrJobLost = errors.New("job lost")
	// ErrNotFound means that the row does not exist.
	ErrNotFound = errors.New("not found")
	// ErrForbidden means that our role is missing a privilege. The text names the table.
	ErrForbidden = errors.New("privilege missing")
	// ErrNotMigrated means that the schema maintenance is missing or older than this program.
	ErrNotMigrated = errors.New("not migrated")
)

// Error is the error of a statement that the database refused.
type Error struct {
	// Database is the configured name of the database. Operation completes the message "cannot …".
	Database, Operation string
	// SQLState is the five-character code of PostgreSQL, or a fitting code if the driver itself
	// refused. It is empty when the database did not answer.
	SQLState string
	Driver   error
	// table is the table of the statement, "" if Operation suffices.
	Table string
	// connecting: the error came before the connection. poolFull: all connections of our pool were in
	// use.
	Connecting, PoolFull bool
	Stack                []uintptr
}

// Callers are the program counters of the sender of the statement. They become the stack in the log
// of every error that wraps this one. An unreachable database has none: its cause is outside.
func (e *Error) Callers() []uintptr {
	if e.Class() == ClassUnreachable {
		return nil
	}
	return e.Stack
}

// Error includes the driver's text: it is for logs, never for a client.
func (e *Error) Error() string {
	// The driver tries an address with and without TLS, and reports both errors.
	cause := slices.Compact(strings.Split(fmt.Sprint(e.Driver), "\n"))
	return fmt.Sprintf("cannot %s on %s: %s: %s", e.Operation, e.Database, e.Condition(), strings.Join(cause, "\n"))
}

// Public returns the text for clients and traces. It names the table, column or constraint of the
// error, and has neither the driver's text nor values of rows.
func (e *Error) Public() string {
	text := fmt.Sprintf("cannot %s on %s: %s%s", e.Operation, e.Database, e.Condition(), e.place())
	if why := e.Why(); why != "" {
		text += ": " + why
	}
	return text
}

// place returns the place of the error, such as ", constraint c of t", "" if unknown.
func (e *Error) place() string {
	said := e.Said()
	of := " of " + said.TableName
	switch {
	case said.TableName == "" && e.Table == "":
		return ""
	case said.ConstraintName != "":
		return ", constraint " + said.ConstraintName + of
	case said.ColumnName != "":
		return ", column " + said.ColumnName + of
	}
	return ", table " + cmp.Or(said.TableName, e.Table)
}

// Said returns PostgreSQL's error, empty if the error is not PostgreSQL's.
func (e *Error) Said() pgconn.PgError {
	if pgErr, ok := errors.AsType[*pgconn.PgError](e.Driver); ok {
		return *pgErr
	}
	return pgconn.PgError{}
}

// Cause returns the driver's error. Its text has no password, and is for logs and consoles, never
// for a client.
func (e *Error) Cause() error { return e.Driver }

// Unwrap returns the driver's error, and [ErrUnreachable] for a database that cannot work.
func (e *Error) Unwrap() []error {
	if e.Class() == ClassUnreachable {
		return []error{ErrUnreachable, e.Driver}
	}
	return []error{e.Driver}
}

// Condition returns the SQLSTATE with PostgreSQL's name of the condition: "42703 undefined_column".
// For a database that cannot work it returns "unreachable (53100 disk_full)", or "unreachable"
// without an answer. If the role is missing a right, it names the command that lists the rights. If
// a pooler has lost a prepared statement, it names the fix.
func (e *Error) Condition() string {
	if e.lostPreparedStatement() {
		return fmt.Sprintf("%s %s: %s", e.SQLState, pqerror.Code(e.SQLState).Name(), PoolerAdvice(e.Database))
	}
	condition := strings.TrimSpace(e.SQLState + " " + pqerror.Code(e.SQLState).Name())
	switch {
	case e.SQLState == "":
		return "unreachable"
	case e.Class() == ClassUnreachable:
		return "unreachable (" + condition + ")"
	}
	if e.SQLState == deniedState {
		condition += " (run `caretaker doctor`)"
	}
	return condition
}

// Why returns the cause and the fix if the statement is not to blame, "" if they are unknown.
func (e *Error) Why() string {
	same, isSame := errors.AsType[*SameDatabaseError](e.Driver)
	switch code := e.SQLState; {
	case isSame:
		return same.Error()
	case e.PoolFull:
		return "all connections of the pool are in use: retry, or raise pool_max_conns in the URL"
	case code == ReadOnlyState:
		return "the server is read-only: check whether the server is a standby, and whether " +
			"default_transaction_read_only is on"
	case code == diskFullState:
		return "the disk of the server is full: free up disk space"
	case code == "53300":
		return "no connection is free: check max_connections, and the CONNECTION LIMIT of the role and database"
	case code == "57P03":
		return "the server is starting up, shutting down or recovering: retry later, or check PostgreSQL's log"
	case e.Refused() && HasPrefix(code, "3D"):
		return "database not found: correct the URL, or create the database"
	case e.Refused():
		return "authentication failed: check the user and password in databases." + urlKey(e.Database) + ", and check pg_hba.conf"
	case e.fromPooler():
		return "the pooler refuses connections: check the pooler's limits and log"
	case code == "55P03":
		return "another transaction holds a lock on a table or row that the statement needs: check pg_stat_activity"
	case code == "P0001":
		return "a trigger or function raised the error: check PostgreSQL's log"
	case code == "57014":
		return "the statement timed out or was cancelled: check pg_stat_activity for locks and load"
	}
	return ""
}

// diskFullState is the SQLSTATE of a server with a full disk, which still answers queries.
const diskFullState = "53100"

// DiskFull reports whether a text that contains an [Error.Condition] is about a full disk.
func DiskFull(text string) bool { return strings.Contains(text, ": unreachable ("+diskFullState) }

// fromPooler reports whether a pooler refused. PostgreSQL, unlike poolers, names its routine in
// every error.
func (e *Error) fromPooler() bool {
	said := e.Said()
	return said.Code != "" && said.Routine == "" && e.Class() == ClassUnreachable
}

// Refused reports whether the server answers and denies us access: the URL is wrong, or rights are
// missing.
func (e *Error) Refused() bool { return e.Connecting && HasPrefix(e.SQLState, "28", "3D") }

// ConditionClass returns the class of the first condition in a text that contains an
// [Error.Condition], such as the record of a failed run.
func ConditionClass(text string) (class Class, found bool) {
	condition := regexp.MustCompile(`: (unreachable|[0-9A-Z]{5} [a-z_]+)`).FindStringSubmatch(text)
	if condition == nil {
		return ClassData, false
	}
	code, _, named := strings.Cut(condition[1], " ")
	if !named {
		code = ""
	}
	return (&Error{SQLState: code}).Class(), true
}

// Class groups SQLSTATEs by how to handle them.
type Class int

// The classes.
const (
	// ClassData is a fault of single rows, and every error of no other class.
	ClassData Class = iota
	// ClassLock is a row or table that another transaction holds.
	ClassLock
	// ClassTimeout is a statement that took too long, or was cancelled.
	ClassTimeout
	// ClassUnreachable is a database that cannot work now.
	ClassUnreachable
	// ClassSchema is a statement that does not fit the schema or our rights.
	ClassSchema
)

// outOfRangeStates are the states of numbers and times that do not fit a column.
func outOfRangeStates() []string { return []string{"22003", "22007", "22008"} }

// OutOfRange reports whether a value of the definition may fit no row, or values of a single row
// with which a trigger computes.
func (e *Error) OutOfRange() bool { return slices.Contains(outOfRangeStates(), e.SQLState) }

// Unencodable reports whether a text has characters that the encoding of the database cannot store.
func Unencodable(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.SQLState == "22P05" || e.SQLState == "22021")
}

// Class returns the class of the error's SQLSTATE.
func (e *Error) Class() Class {
	switch code := e.SQLState; {
	case e.lostPreparedStatement():
		return ClassUnreachable
	case code == "55P03", code == "40P01", code == "40001":
		return ClassLock
	case code == "57014", code == "25P04": // statement_timeout, transaction_timeout
		return ClassTimeout
	case code == "", e.Connecting, code == ReadOnlyState, code == "25P03",
		HasPrefix(code, "08", "53", "57P", "58"):
		return ClassUnreachable
	case code == "22P02", e.OutOfRange(), HasPrefix(code, "42", "3F", "0A", "2F"):
		return ClassSchema
	}
	return ClassData
}

// lostPreparedStatement reports whether a prepared statement is missing, or a statement exists that
// this connection did not prepare. Nothing works then, but no row is to blame.
func (e *Error) lostPreparedStatement() bool {
	return e.SQLState == "26000" || e.SQLState == "42P05"
}

// HasPrefix reports whether a SQLSTATE begins with one of the prefixes.
func HasPrefix(code string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(code, p) {
			return true
		}
	}
	return false
}

// SQLState returns the code of an error, "" if the server sent none. Errors of the driver do not
// concern the server. Examples are a missing row and a value that does not fit a parameter or a
// variable.
func SQLState(err error) string {
	pgErr, refused := errors.AsType[*pgconn.PgError](err)
	_, unread := errors.AsType[pgx.ScanArgError](err)
	switch {
	case refused:
		return pgErr.Code
	case unread, err != nil && strings.Contains(err.Error(), "failed to encode args["):
		return "42804"
	case errors.Is(err, pgx.ErrNoRows):
		return "02000"
	}
	return ""
}

// Ours reports whether an error is already one of this package, rather than an error of the
// database or a missing answer.
func Ours(err error) bool {
	for _, sentinel := range []error{
		ErrLeaseLost, ErrJobLost, ErrNotFound, ErrUnreachable, ErrForbidden, ErrBusy, ErrJobCancelled, ErrDryRun,
		ErrUnguarded,
	} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	var public interface{ Public() }
	var detailed interface {
		Details() (string, map[string]string)
	}
	return errors.As(err, &public) || errors.As(err, &detailed)
}

// ErrDryRun rolls a dry run back.
var ErrDryRun = errors.New("dry run rolled back")

// String returns the class as a label.
func (c Class) String() string {
	return strings.Fields("data lock timeout unreachable schema")[c]
}

// TextError is an error that is only its text, which is fit for clients.
type TextError string

func (e TextError) Error() string { return string(e) }

// Public marks the error as fit for clients.
func (e TextError) Public() {}

// deniedState is the SQLSTATE of a missing privilege, and of row-level security.
const deniedState = "42501"

// NoSchemaError means that a database has no application schema: current_schema() is NULL.
type NoSchemaError struct {
	// Database is the configured name, Advice the fix.
	Database, Advice string
}

// Error names the database and the fix.
func (e *NoSchemaError) Error() string {
	return fmt.Sprintf("database %s has no application schema: %s", e.Database, e.Advice)
}

// Public marks the text as fit for clients.
func (e *NoSchemaError) Public() {}

// ReplicaSuffix follows the database's name in messages about its replica.
const ReplicaSuffix = " (replica)"

// ReadOnlyState is the SQLSTATE of a write on a standby, or where transactions are read-only by
// default.
const ReadOnlyState = "25006"

// NoTargetTableText is the text of [ErrNoTargetTable].
const NoTargetTableText = "a protected user or group cannot be looked up, because main has no table users or " +
	"namespaces with an integer id in its search_path: restore the table, or run `caretaker unprotect` to end the protections"

// ErrNoTargetTable means that the transaction could not check whether protected rows exist. It
// changed nothing.
const ErrNoTargetTable = TextError(NoTargetTableText)

// ErrChildChanged means that a statement might miss rows, because the child table has changed since
// the start of the run. The transaction changed nothing.
const ErrChildChanged = TextError("the child table has changed since the run started (a new trigger, rule or inheriting " +
	"table, or a partition that is being detached): wait for the next run")

// ErrLivingParent means that the parent of a key exists. The transaction changed nothing.
const ErrLivingParent = TextError("the parent row of a recorded key exists")

// ErrBusy means that another transaction holds the advisory lock of a [fencing.Guard]. The transaction
// changed nothing.
var ErrBusy = errors.New("another transaction is changing the same target")

// ErrUnguarded is a bug of ours: a write whose permit has no guard.
var ErrUnguarded = errors.New("write rejected, because its permit has no guard: report this bug")

// SameDatabaseError means that two configured names lead to one database. Together they would have
// twice the limits.
type SameDatabaseError struct {
	// Name is the name to remove, First the other.
	Name, First string
}

// Error names both keys and the fix.
func (e *SameDatabaseError) Error() string {
	return fmt.Sprintf("databases.%[1]s.url points to the same database as databases.%[2]s.url: "+
		"remove databases.%[1]s.url", e.Name, e.First)
}

// PoolerAdvice returns the fix for a pooler that prepares statements on one connection and uses
// them on another.
func PoolerAdvice(database string) string {
	return "for a pooler in transaction mode, add default_query_exec_mode=exec to databases." +
		urlKey(database) + " (" + docs.URL("guides/managed-postgresql.md") + ")"
}

// urlKey returns the configuration key of a database's URL, without "databases.".
func urlKey(database string) string {
	if primary, ok := strings.CutSuffix(database, ReplicaSuffix); ok {
		return primary + ".replica_url"
	}
	return database + ".url"
}

// ErrJobCancelled means that an operator has cancelled the job. Its attempts write nothing more.
var ErrJobCancelled = errors.New("job cancelled")
