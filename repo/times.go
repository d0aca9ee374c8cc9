package repo

import (
	"bytes"
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
func latest() time.Time   { return time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC) }

// clampTimes makes a connection read dates and times so.
func clampTimes(conn *pgx.Conn) {
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
		*into = latest()
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
		*into = latest()
		if v == pgtype.NegativeInfinity {
			*into = earliest()
		}
	}
	return nil
}

// since is how long it is from a time to now: 0 if that is still to come, or was never. It is done
// here because PostgreSQL refuses to subtract infinite times.
func since(then, now time.Time) time.Duration {
	if then.IsZero() {
		return 0
	}
	return max(0, now.Sub(then))
}

func clamped(t time.Time) time.Time {
	switch {
	case t.Before(earliest()):
		return earliest()
	case t.After(latest()):
		return latest()
	}
	return t
}
