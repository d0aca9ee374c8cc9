// Package dberr has the errors of databases: typed, with their SQLSTATE and its class, and a text that is fit for clients.
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
)

// Sentinels of this package.
var (
	// ErrUnreachable means that the database did not answer: it is down, refuses us, is in recovery
	// or too busy.
	ErrUnreachable = errors.New("database unreachable")
	// ErrLeaseLost means that the lease named by a fence is no longer held; the transaction changed
	// nothing.
	ErrLeaseLost = errors.New("lease lost")
	// ErrJobLost means that a job is no longer worked by this attempt; the transaction changed
	// nothing.
	ErrJobLost = errors.New("job lost")
	// ErrNotFound means that there is no such row.
	ErrNotFound = errors.New("not found")
	// ErrForbidden means that our role lacks a privilege; the text names the table.
	ErrForbidden = errors.New("privilege missing")
	// ErrNotMigrated means that the schema maintenance is missing or older than this program.
	ErrNotMigrated = errors.New("not migrated")
)

// Error is a statement that the database refused.
type Error struct {
	// Database is the configured name of the database, Operation what was tried, in words.
	Database, Operation string
	// SQLState is the five-character code, PostgreSQL's or for what the driver itself refused the
	// one that fits; empty when the database did not answer.
	SQLState string
	Driver   error
	// table is the one that the statement was about, "" if Operation says enough.
	Table string
	// connecting: there was no connection yet. poolFull: all connections of our pool were in use.
	Connecting, PoolFull bool
	Stack                []uintptr
}

// Callers are the program counters of where the statement was sent: the log's stack of whatever
// this becomes the cause of.
func (e *Error) Callers() []uintptr { return e.Stack }

// Error includes the driver's text: it is for logs, never for a client.
func (e *Error) Error() string {
	// The driver tries an address with TLS and without, and says both times what it met.
	cause := slices.Compact(strings.Split(fmt.Sprint(e.Driver), "\n"))
	return fmt.Sprintf("%s on %s: %s: %s", e.Operation, e.Database, e.Condition(), strings.Join(cause, "\n"))
}

// Public is the text for clients and traces: it names the table, column or constraint that the database complains of, and
// has neither the driver's text nor values of rows.
func (e *Error) Public() string {
	text := fmt.Sprintf("%s on %s: %s%s", e.Operation, e.Database, e.Condition(), e.place())
	if why := e.Why(); why != "" {
		text += ": " + why
	}
	return text
}

// place is ", constraint c of t" or the like, "" if nothing is known.
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

// Said is PostgreSQL's error, empty if the driver's is none.
func (e *Error) Said() pgconn.PgError {
	if pgErr, ok := errors.AsType[*pgconn.PgError](e.Driver); ok {
		return *pgErr
	}
	return pgconn.PgError{}
}

// Cause is the driver's error. Its text has no password, and is for logs and consoles, never for a
// client.
func (e *Error) Cause() error { return e.Driver }

// Unwrap returns the driver's error; for a database that cannot work, [ErrUnreachable] too.
func (e *Error) Unwrap() []error {
	if e.Class() == ClassUnreachable {
		return []error{ErrUnreachable, e.Driver}
	}
	return []error{e.Driver}
}

// Condition is the SQLSTATE with PostgreSQL's name of the condition: "42703 undefined_column". For a
// database that cannot work it is "unreachable (53100 disk_full)", or "unreachable" without an answer.
// Where the role lacks a right, it names the command that lists the rights. Where a pooler has come
// between a statement and its preparation, it says what to do.
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
		condition += " (see caretaker doctor)"
	}
	return condition
}

// Why says what else than the statement is to blame, and what to do; "" where that is not known.
func (e *Error) Why() string {
	same, isSame := errors.AsType[*SameDatabaseError](e.Driver)
	switch code := e.SQLState; {
	case isSame:
		return same.Error()
	case e.PoolFull:
		return "all connections of its pool are in use"
	case code == ReadOnlyState:
		return "it is read-only: a standby, or default_transaction_read_only"
	case code == diskFullState:
		return "its disk is full"
	case code == "53300":
		return "it has no connection left: max_connections, or CONNECTION LIMIT of the role or the database"
	case code == "57P03":
		return "it is starting up, shutting down or recovering"
	case e.Refused() && HasPrefix(code, "3D"):
		return "it has no database of that name: correct the URL, or create the database"
	case e.Refused():
		return "it refuses our user or its password: correct the URL, or the server's roles and pg_hba.conf"
	case e.fromPooler():
		return "a pooler before it refuses: check the limits and the log of the pooler"
	case code == "55P03":
		return "another transaction holds a lock on a table or row that this needs: check pg_stat_activity"
	case code == "P0001":
		return "a trigger or function raises it: its message is in PostgreSQL's log"
	case code == "57014":
		return "it took too long or was cancelled: check pg_stat_activity for locks and load"
	}
	return ""
}

// diskFullState is the SQLSTATE of a server that can store nothing more. It still answers queries.
const diskFullState = "53100"

// DiskFull reports whether a text that [Error.Condition] is part of is about a full disk.
func DiskFull(text string) bool { return strings.Contains(text, ": unreachable ("+diskFullState) }

// fromPooler reports whether a pooler refused, not PostgreSQL, which names its routine in every
// error.
func (e *Error) fromPooler() bool {
	said := e.Said()
	return said.Code != "" && said.Routine == "" && e.Class() == ClassUnreachable
}

// Refused says that the server is there and does not let us in: the URL is wrong, or rights are
// missing.
func (e *Error) Refused() bool { return e.Connecting && HasPrefix(e.SQLState, "28", "3D") }

// ConditionClass is the class of the first condition in a text that [Error.Condition] is part of,
// as the record of a failed run has it.
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

// Class sorts SQLSTATEs by what to do about them.
type Class int

// The classes.
const (
	// ClassData is a fault of single rows, and everything that is in no other class.
	ClassData Class = iota
	// ClassLock is a row or table that somebody else holds.
	ClassLock
	// ClassTimeout is a statement that took too long, or was cancelled.
	ClassTimeout
	// ClassUnreachable is a database that cannot work now.
	ClassUnreachable
	// ClassSchema is a statement that does not fit the schema or our rights.
	ClassSchema
)

// outOfRangeStates are the states of numbers and times that a column does not take.
func outOfRangeStates() []string { return []string{"22003", "22007", "22008"} }

// OutOfRange says that the fault may be the definition's, whose value no row can take, or that of a
// single row, whose values a trigger computes with.
func (e *Error) OutOfRange() bool { return slices.Contains(outOfRangeStates(), e.SQLState) }

// Unencodable says that a text has characters that the encoding of the database does not have.
func Unencodable(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.SQLState == "22P05" || e.SQLState == "22021")
}

// Class of the error's SQLSTATE.
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

// lostPreparedStatement: a statement that was prepared is not there, or one is that was not. Nothing
// works then, but no row is to blame.
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

// SQLState is the code of an error, "" where nobody answered. That a value does not fit a parameter
// or a variable, or that a row is missing, the driver notices by itself, and says nothing about the
// server.
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

// Ours reports whether an error is one of this package already: not what the database has said, nor
// that it said nothing.
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

// String is the class as a label.
func (c Class) String() string {
	return strings.Fields("data lock timeout unreachable schema")[c]
}

// TextError is an error that is nothing but its text, which is fit for clients.
type TextError string

func (e TextError) Error() string { return string(e) }

// Public marks it as fit for clients.
func (e TextError) Public() {}

// deniedState is the SQLSTATE of a missing privilege, and of row-level security.
const deniedState = "42501"

// NoSchemaError says why a database has no application schema: current_schema() is NULL.
type NoSchemaError struct {
	// Database is the configured name, Advice what to do.
	Database, Advice string
}

// Error names the database, and what to do.
func (e *NoSchemaError) Error() string {
	return fmt.Sprintf("database %s has no application schema: %s", e.Database, e.Advice)
}

// Public says that the text is fit for clients.
func (e *NoSchemaError) Public() {}

// ReplicaSuffix follows the database's name in messages about its replica.
const ReplicaSuffix = " (replica)"

// ReadOnlyState is the SQLSTATE of a write on a standby, or where transactions are read-only by
// default.
const ReadOnlyState = "25006"

// NoTargetTableText is the text of [ErrNoTargetTable].
const NoTargetTableText = "a protected user or group cannot be looked up: main has no table of users or namespaces " +
	"with an integer id in its search_path: restore the table, or end the protections with caretaker unprotect"

// ErrNoTargetTable means that a transaction changed nothing, because nobody could tell whether protected rows
// are there.
const ErrNoTargetTable = TextError(NoTargetTableText)

// ErrChildChanged means that a statement might miss rows because the child table has changed since the run
// began. The transaction changed nothing.
const ErrChildChanged = TextError("the child table has changed since the run began: it has a new trigger or rule, a table " +
	"inherits from it, or a partition is being detached. The next run takes that into account")

// ErrLivingParent means that the parent of a key is alive; the transaction changed nothing.
const ErrLivingParent = TextError("the parent of a key is alive")

// ErrBusy means that another transaction holds the advisory lock of a [fencing.Guard]. The transaction
// changed nothing.
var ErrBusy = errors.New("somebody else is at work on it")

// ErrUnguarded is a fault of ours: a write whose permit has no guard.
var ErrUnguarded = errors.New("a write without a guard, nothing was changed")

// SameDatabaseError says that two configured names lead to one database: side by side they would
// have twice the limits.
type SameDatabaseError struct {
	// Name is the one to be left out, First the other.
	Name, First string
}

// Error names both keys, and what to do.
func (e *SameDatabaseError) Error() string {
	return fmt.Sprintf("databases.%[1]s.url is the same database as databases.%[2]s.url: "+
		"leave databases.%[1]s.url out", e.Name, e.First)
}

// PoolerAdvice is what to do when statements are prepared on one connection of a pooler and used on
// another.
func PoolerAdvice(database string) string {
	key := database + ".url"
	if primary, ok := strings.CutSuffix(database, ReplicaSuffix); ok {
		key = primary + ".replica_url"
	}
	return "behind a pooler in transaction mode add default_query_exec_mode=exec to databases." +
		key + " (docs/databases.md)"
}

// ErrJobCancelled means that an operator has cancelled the job: its attempts write nothing more.
var ErrJobCancelled = errors.New("job cancelled")
