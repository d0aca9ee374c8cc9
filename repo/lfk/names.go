package lfk

import (
	"strconv"
	"strings"
)

// MaxKeyColumns is the maximum number of columns of a recorded key.
const MaxKeyColumns = 4

// Key is the recorded key of a deleted row: one to four values in PostgreSQL's text form. Keys are
// comparable: equal keys belong to the same row.
type Key struct {
	// values has a zero byte after each value. No text of PostgreSQL contains one.
	values string
}

// KeyOf returns the key of some values, in the order in which they are recorded.
func KeyOf(values ...string) Key {
	var all strings.Builder
	for _, v := range values {
		all.WriteString(v)
		all.WriteByte(0)
	}
	return Key{all.String()}
}

// IntKey returns the key of a row that an integer identifies.
func IntKey(n int64) Key { return KeyOf(strconv.FormatInt(n, 10)) }

// IntKeys returns the keys of rows that integers identify.
func IntKeys(numbers ...int64) []Key {
	keys := make([]Key, len(numbers))
	for i, n := range numbers {
		keys[i] = IntKey(n)
	}
	return keys
}

// Values returns the values of the key's columns.
func (k Key) Values() []string {
	if k.values == "" {
		return nil
	}
	return strings.Split(k.values[:len(k.values)-1], "\x00")
}

// Columns returns the number of values of the key.
func (k Key) Columns() int { return strings.Count(k.values, "\x00") }

// Int returns the number of a key that is one integer.
func (k Key) Int() (n int64, ok bool) {
	text, one := strings.CutSuffix(k.values, "\x00")
	n, err := strconv.ParseInt(text, 10, 64)
	return n, one && err == nil
}

// String returns the key for messages: 7, or (7, abc). It quotes a value that could be misread.
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

// RecordKey is the key of a record in documents: a number, or texts.
type RecordKey struct {
	// Number is nil if the key is not one integer. Then Values has its values.
	Number *int64   `json:"key"`
	Values []string `json:"key_values,omitempty"`
}

// Key returns the key.
func (k RecordKey) Key() Key {
	if k.Number != nil {
		return IntKey(*k.Number)
	}
	return KeyOf(k.Values...)
}
