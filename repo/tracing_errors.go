package repo

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// describe is an error's class and its description in words that quote nothing: of the server's
// errors the SQLSTATE and PostgreSQL's name of it. What has not failed has no class: that a lease
// is lost is a failure, that a row is not there, or must be kept, is an answer.
func describe(err error) (kind, text string) {
	state := sqlState(err)
	switch {
	case err == nil:
		return "", ""
	case state != "":
		return state, (&Error{SQLState: state}).Condition()
	case errors.Is(err, ErrLeaseLost):
		return "LEASE_LOST", ErrLeaseLost.Error()
	case errors.Is(err, ErrJobLost):
		return "JOB_LOST", ErrJobLost.Error()
	case errors.Is(err, context.Canceled):
		return "cancelled", "cancelled"
	case errors.Is(err, ErrUnreachable), errors.Is(err, context.DeadlineExceeded), disconnected(err):
		return "unreachable", ErrUnreachable.Error()
	case ours(err):
		return "", ""
	}
	return "_OTHER", "the database did not answer, or not as expected"
}

// disconnected says whether there was no connection, or none any more.
func disconnected(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	return connecting || network || pgconn.SafeToRetry(err) || errors.Is(err, io.ErrUnexpectedEOF)
}
