package pg

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/caretaker-go/caretaker/repo/dberr"
)

// asCondition returns the error of the condition with which a statement failed. PostgreSQL's
// message repeats the text, in quotes that depend on lc_messages.
func asCondition(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "22P02" {
		return err
	}
	if e := lostTarget(pgErr.Message); e != nil {
		return e
	}
	for _, e := range []dberr.TextError{dberr.ErrLivingParent, dberr.ErrChildChanged, dberr.ErrNoTargetTable} {
		if strings.Contains(pgErr.Message, e.Error()) {
			return e
		}
	}
	return err
}

// maxCallers is the depth of a stack: as far as the worker that sent the statement, and beyond.
const maxCallers = 24

// Wrap turns an error of the driver into one of package dberr. Errors that are already ours, and
// those of the caller's own context, pass unchanged.
func Wrap(ctx context.Context, d *Database, operation string, err error) error {
	if err = asCondition(err); dberr.Ours(err) {
		return err
	}
	err = d.translate(ctx, operation, err)
	d.observe(err)
	return err
}

// translate returns the driver's error as a [*dberr.Error], with the statement's callers. If the
// caller's context ended first, the error is its cause instead.
func (d *Database) translate(ctx context.Context, operation string, err error) error {
	if err == nil {
		return nil
	}
	callers := make([]uintptr, maxCallers)
	// Without this function, wrap and the runtime's own functions.
	callers = callers[:runtime.Callers(3, callers)]
	e := &dberr.Error{Database: d.Name, Operation: operation, Driver: err, Stack: callers}
	if about, ok := errors.AsType[*tableError](err); ok {
		e.Table, e.Driver = about.table, about.error
	}
	_, e.Connecting = errors.AsType[*pgconn.ConnectError](err)
	e.SQLState = dberr.SQLState(err)
	switch {
	case e.SQLState != "":
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), dberr.ErrUnreachable):
		return fmt.Errorf("cannot %s on %s: %w", operation, d.Name, context.Cause(ctx))
	case ctx.Err() != nil:
		// A timeout while all connections are in use is reported as a full pool.
		pool := d.pool.Stat()
		e.PoolFull = pool.AcquiredConns() == pool.MaxConns()
	}
	return e
}

// tableError names the table of a failed statement of a transaction: PostgreSQL names none if a
// trigger raises.
type tableError struct {
	table string
	error
}

// Unwrap returns the driver's error.
func (e *tableError) Unwrap() error { return e.error }

// About records the table of a failed statement in its error.
func About(table string, err error) error {
	if err == nil {
		return nil
	}
	return &tableError{table, err}
}
