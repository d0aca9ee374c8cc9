package lfk

import (
	"strconv"
	"strings"
)

// MaxKeyColumns is how many columns a recorded key has at most.
const MaxKeyColumns = 4

// Key is the recorded key of a deleted row: one to four values in PostgreSQL's text form. Keys can
// be compared; equal ones are of the same row.
type Key struct {
	// values, each with a zero byte behind it, which no text of PostgreSQL has.
	values string
}

// KeyOf is the key of some values, in the order in which they are recorded.
func KeyOf(values ...string) Key {
	var all strings.Builder
	for _, v := range values {
		all.WriteString(v)
		all.WriteByte(0)
	}
	return Key{all.String()}
}

// IntKey is the key of a row that is known by an integer.
func IntKey(n int64) Key { return KeyOf(strconv.FormatInt(n, 10)) }

// IntKeys are keys of rows that are known by integers.
func IntKeys(numbers ...int64) []Key {
	keys := make([]Key, len(numbers))
	for i, n := range numbers {
		keys[i] = IntKey(n)
	}
	return keys
}

// Values are those of the key's columns.
func (k Key) Values() []string {
	if k.values == "" {
		return nil
	}
	return strings.Split(k.values[:len(k.values)-1], "\x00")
}

// Columns is how many values the key has.
func (k Key) Columns() int { return strings.Count(k.values, "\x00") }

// Int is the number of a key that is one integer.
func (k Key) Int() (n int64, ok bool) {
	text, one := strings.CutSuffix(k.values, "\x00")
	n, err := strconv.ParseInt(text, 10, 64)
	return n, one && err == nil
}

// String is for people: 7, or (7, abc). A value that could be misread is quoted.
func (k Key) String() string {
	values := k.Values()
	for i, v := range values {
		if v == "" || strconv.Quote(v) != `"`+v+`"` || strings.ContainsAny(v, ",()") ||
			strings.TrimSpace(v) != v {
			values[i] = strconv.Quote(v)
		}
	}
	if len(values) == 1 {
		return values[0]
	}
	return "(" + strings.Join(values, ", ") + ")"
}

// RecordKey is the key of a record, as documents have it: a number, or texts.
type RecordKey struct {
	// Number is nil if the row was not known by one integer; then Values has its values.
	Number *int64   `json:"key"`
	Values []string `json:"key_values,omitempty"`
}

// Key is the key.
func (k RecordKey) Key() Key {
	if k.Number != nil {
		return IntKey(*k.Number)
	}
	return KeyOf(k.Values...)
}
