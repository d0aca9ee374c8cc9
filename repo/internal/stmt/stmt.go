// Package stmt puts SQL texts and their parameters together. It knows no database.
package stmt

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// PostgreSQL knows times that neither [time.Time] in JSON nor a protobuf Timestamp can carry:
// infinity, -infinity, and years beyond 9999 or before 1. Whatever reads a date or a time into a
// time.Time gets the nearest one that can be carried instead, so that no column of anybody's can
// fail a run, a status or a list. NULL is the zero time.

// earliest and latest are those times. earliest is not the zero time, which stands for none.
func earliest() time.Time { return time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC) }

// Latest is the last time that can be carried.
func Latest() time.Time { return time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC) }

// ClampTimes makes a connection read dates and times so.
func ClampTimes(conn *pgx.Conn) {
	for name, t := range map[string]pgtype.Type{
		"timestamptz": {OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{}},
		"timestamp":   {OID: pgtype.TimestampOID, Codec: &pgtype.TimestampCodec{}},
		"date":        {OID: pgtype.DateOID, Codec: pgtype.DateCodec{}},
	} {
		conn.TypeMap().RegisterType(&pgtype.Type{Name: name, OID: t.OID, Codec: clampedTimes{t.Codec}})
	}
}

// clampedTimes reads a type of pgx into a time.Time within the bounds, in UTC.
type clampedTimes struct{ pgtype.Codec }

// PlanScan leaves all other targets to pgx.
func (c clampedTimes) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*time.Time); ok {
		return clampedTime{c.Codec, m, oid, format}
	}
	return c.Codec.PlanScan(m, oid, format, target)
}

type clampedTime struct {
	pgtype.Codec
	m      *pgtype.Map
	oid    uint32
	format int16
}

// Scan is the pgtype.ScanPlan.
func (c clampedTime) Scan(src []byte, target any) error {
	into, _ := target.(*time.Time) // PlanScan has made sure that it is one
	if c.format == pgtype.TextFormatCode && bytes.IndexByte(src, '-') > len("9999") {
		*into = Latest()
		return nil
	}
	value, err := c.DecodeValue(c.m, c.oid, c.format, src)
	if err != nil {
		return err
	}
	switch v := value.(type) {
	case nil:
		*into = time.Time{}
	case time.Time:
		*into = clamped(v.UTC())
	case pgtype.InfinityModifier:
		*into = Latest()
		if v == pgtype.NegativeInfinity {
			*into = earliest()
		}
	}
	return nil
}

// Since is how long it is from a time to now: 0 if that is still to come, or was never. It is done
// here because PostgreSQL refuses to subtract infinite times.
func Since(then, now time.Time) time.Duration {
	if then.IsZero() {
		return 0
	}
	return max(0, now.Sub(then))
}

func clamped(t time.Time) time.Time {
	switch {
	case t.Before(earliest()):
		return earliest()
	case t.After(Latest()):
		return Latest()
	}
	return t
}

// Statement is an SQL text with its parameters.
type Statement struct {
	SQL  string
	Args []any
}

// Milliseconds is a duration as settings of PostgreSQL have it.
func Milliseconds(d time.Duration) string {
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// Fill puts quoted identifiers, or fragments made of them, into an SQL constant: pairs of {name}
// and text.
func Fill(sql string, pairs ...string) string {
	return strings.NewReplacer(pairs...).Replace(sql)
}

// Quote quotes the parts of a name.
func Quote(names ...string) string { return pgx.Identifier(names).Sanitize() }

// Parameters are the values of a statement that is put together from parts.
type Parameters []any

// Add returns the name of the parameter: $1, $2 ...
func (p *Parameters) Add(value any) string {
	*p = append(*p, value)
	return "$" + strconv.Itoa(len(*p))
}

// List is add for a list that several parts of a statement may share.
func (p *Parameters) List(values []string) string {
	for i, known := range *p {
		same, ok := known.([]string)
		if ok && len(same) == len(values) && len(values) > 0 && &same[0] == &values[0] {
			return "$" + strconv.Itoa(i+1)
		}
	}
	return p.Add(values)
}

// Bound is a time, or infinity where it is not set.
func Bound(t time.Time, otherwise pgtype.InfinityModifier) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: otherwise, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

// CustomPlan as the first argument makes PostgreSQL plan a statement for its arguments each time: which index a list
// reads depends on the filters that are set.
const CustomPlan = pgx.QueryExecModeExec

// StatementTimeout bounds the small statements of our own tables.
const StatementTimeout = 5 * time.Second
