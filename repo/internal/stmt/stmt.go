// Package stmt assembles SQL texts and their parameters. It knows no database.
package stmt

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// PostgreSQL has times that neither [time.Time] in JSON nor a protobuf Timestamp can represent:
// infinity, -infinity, and years beyond 9999 or before 1. Reading a date or a time into a time.Time
// yields the nearest time that can be represented instead. So no column can fail a run, a status or
// a list. NULL is the zero time.

// earliest and latest are those times. earliest is not the zero time, which means NULL.
func earliest() time.Time { return time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC) }

// Latest is the last time that can be represented.
func Latest() time.Time { return time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC) }

// ClampTimes makes a connection read dates and times this way.
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

// Scan implements pgtype.ScanPlan.
func (c clampedTime) Scan(src []byte, target any) error {
	into, _ := target.(*time.Time) // PlanScan has checked the type
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

// Since returns the time from then to now, 0 if then is in the future or zero. PostgreSQL refuses
// to subtract infinite times.
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
	// Planned means that the best plan depends on the length of the arguments, so each execution
	// needs a plan of its own.
	Planned bool
}

// Milliseconds formats a duration as settings of PostgreSQL require it.
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

// Parameters are the values of a statement that is assembled from parts.
type Parameters []any

// Add returns the name of the parameter: $1, $2 ...
func (p *Parameters) Add(value any) string {
	*p = append(*p, value)
	return "$" + strconv.Itoa(len(*p))
}

// List is Add for a list that several parts of a statement may share.
func (p *Parameters) List(values []string) string {
	for i, known := range *p {
		same, ok := known.([]string)
		if ok && len(same) == len(values) && len(values) > 0 && &same[0] == &values[0] {
			return "$" + strconv.Itoa(i+1)
		}
	}
	return p.Add(values)
}

// Bound returns a time, or infinity if it is not set.
func Bound(t time.Time, otherwise pgtype.InfinityModifier) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: otherwise, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

// CustomPlan as the first argument makes PostgreSQL plan a statement for its arguments each time:
// the filters decide which index a list reads.
const CustomPlan = pgx.QueryExecModeExec

// StatementTimeout bounds the small statements of our own tables.
const StatementTimeout = 5 * time.Second
