package config

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// kind is the type of a value, as error messages name it.
type kind string

const (
	text     kind = "text"
	boolean  kind = "true or false"
	integer  kind = "a whole number"
	duration kind = "a duration such as 30s or 2m"
	size     kind = "a size such as 64MB or 4GB"
	mapping  kind = "a mapping such as {alice: operator}"
)

// Key is one configuration key: a field with tags.
type Key struct {
	// Path is the key's name: its path in the file, joined by dots.
	Path string
	// Default has the syntax of the file. "" means none.
	Default string
	// Owner is the struct that has the field.
	Owner reflect.Type
	Field reflect.StructField

	kind kind
	// zero is set if zero is a valid value.
	zero  bool
	to    reflect.Value
	check func(key, text string) error
}

// checker is a struct that checks values itself. The key is the one in the field's tag.
type checker interface {
	Check(key, text string) error
}

// sections is a struct with additional sections: pointers to structs, by their keys.
type sections interface {
	Sections() iter.Seq2[string, any]
}

// Variable returns the environment variable of a key.
func Variable(path string) string {
	return "CARETAKER_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// Defaults sets zero fields to their defaults, unless zero is a valid value, as [Load] does.
func Defaults(into ...any) { fill(Keys(into...)) }

func fill(keys []Key) {
	for _, k := range keys {
		if k.Default != "" && !k.zero && k.to.IsZero() {
			_ = k.set(k.Default) // The tests check that defaults are valid.
		}
	}
}

// Keys returns the keys of the structs that into points to, in the order of their fields.
func Keys(into ...any) (keys []Key) {
	for _, s := range into {
		keys = append(keys, keysOf("", s)...)
	}
	return keys
}

func keysOf(prefix string, into any) []Key {
	return fieldsOf(prefix, reflect.ValueOf(into).Elem(), "")
}

// fieldsOf returns the keys of a struct. embedding is the tag of the field that embeds it, with
// defaults.
func fieldsOf(prefix string, s reflect.Value, embedding reflect.StructTag) (keys []Key) {
	for i := range s.NumField() {
		f, to := s.Type().Field(i), s.Field(i)
		name := f.Tag.Get("key")
		switch {
		case f.Anonymous && f.Type.Kind() == reflect.Struct:
			keys = append(keys, fieldsOf(prefix, to, f.Tag)...)
		case name == "":
		case f.Type.Kind() == reflect.Struct:
			keys = append(keys, fieldsOf(prefix+name+".", to, "")...)
		default:
			k := Key{Path: prefix + name, Owner: s.Type(), Field: f, kind: kindOf(f), to: to}
			k.Default = cmp.Or(embedding.Get(name), f.Tag.Get("default"))
			_, k.zero = f.Tag.Lookup("off")
			k.zero = k.zero || to.Kind() == reflect.Bool
			if c, ok := reflect.TypeAssert[checker](s.Addr()); ok {
				k.check = c.Check
			}
			keys = append(keys, k)
		}
	}
	if more, ok := reflect.TypeAssert[sections](s.Addr()); ok {
		for name, section := range more.Sections() {
			keys = append(keys, keysOf(prefix+name+".", section)...)
		}
	}
	return keys
}

func kindOf(f reflect.StructField) kind {
	switch kind := f.Type.Kind(); {
	case f.Tag.Get("unit") == "bytes":
		return size
	case f.Type == reflect.TypeFor[time.Duration]():
		return duration
	case kind == reflect.Int || kind == reflect.Int64:
		return integer
	case kind == reflect.Bool || kind == reflect.Pointer:
		return boolean
	case kind == reflect.Map:
		return mapping
	}
	return text
}

// set parses a value into the field.
func (k Key) set(s string) error {
	if k.kind == text && k.zero && s == "" {
		k.to.SetZero()
		return nil
	}
	if k.check != nil {
		if err := k.check(k.Field.Tag.Get("key"), s); err != nil {
			return err
		}
	}
	switch k.kind {
	case text:
		return k.setText(s)
	case mapping:
		return k.setMapping(s)
	case boolean:
		is := strings.EqualFold(s, "true")
		if !is && !strings.EqualFold(s, "false") {
			return wrong(s, boolean)
		}
		if k.to.Kind() == reflect.Pointer {
			k.to.Set(reflect.ValueOf(&is))
		} else {
			k.to.SetBool(is)
		}
		return nil
	default:
		n, err := k.number(s)
		if err == nil {
			k.to.SetInt(n)
		}
		return err
	}
}

// setText accepts one of the allowed values in any case, names separated by commas, or any text.
func (k Key) setText(s string) error {
	if words := strings.Fields(k.Field.Tag.Get("of")); len(words) > 0 {
		if !slices.Contains(words, strings.ToLower(s)) {
			return fmt.Errorf("%q is not one of %s", s, strings.Join(words, ", "))
		}
		s = strings.ToLower(s)
	}
	if k.to.Kind() == reflect.String {
		k.to.SetString(s)
		return nil
	}
	names := strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	k.to.Set(reflect.ValueOf(slices.DeleteFunc(names, func(name string) bool { return name == "" })))
	return nil
}

// setMapping accepts a YAML mapping of names to allowed values.
func (k Key) setMapping(s string) error {
	values := map[string]string{}
	if err := yaml.Unmarshal([]byte(s), &values); err != nil {
		return wrong(s, mapping)
	}
	if len(values) == 0 {
		return errors.New("is empty: add an entry, or remove the key")
	}
	words := strings.Fields(k.Field.Tag.Get("of"))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name == "" || !slices.Contains(words, values[name]) {
			return fmt.Errorf("%s: %q is not one of %s", name, values[name], strings.Join(words, ", "))
		}
	}
	k.to.Set(reflect.ValueOf(values))
	return nil
}

// number accepts values within the bounds. Other values are most likely typing errors, which would
// use all memory or hold a lease for years.
func (k Key) number(s string) (int64, error) {
	n, err := k.kind.parse(s)
	if err != nil {
		return 0, wrong(s, k.kind)
	}
	high, low, atLeast, least := "large", "small", "at least 1", int64(1)
	if k.kind == duration {
		high, low, atLeast = "long", "short", "a duration above 0"
	}
	if bound := k.Field.Tag.Get("min"); bound != "" {
		atLeast = "at least " + bound
		least, _ = k.kind.parse(bound)
	}
	bound := k.Field.Tag.Get("max")
	switch most, _ := k.kind.parse(bound); {
	case n > most:
		return 0, fmt.Errorf("%s is too %s: use at most %s", s, high, bound)
	case k.zero && n == 0:
	case k.zero && n < 0 && k.kind != integer:
		return 0, fmt.Errorf("%s is negative: use 0 to disable the limit", s)
	case n < least:
		return 0, fmt.Errorf("%s is too %s: use %s", s, low, atLeast)
	}
	return n, nil
}

// parse converts a text to a number. Values beyond 64 bits become the largest or smallest number.
func (k kind) parse(s string) (int64, error) {
	if k == duration {
		d, err := time.ParseDuration(s)
		if unit := strings.TrimLeft(s, "0123456789"); err != nil && unit != s {
			if _, err := time.ParseDuration("1" + unit); err == nil {
				return math.MaxInt64, nil
			}
		}
		return int64(d), err
	}
	factor := int64(1)
	if k == size {
		s, factor = withoutUnit(s)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, err
	case n < 0:
		return n, nil
	case n > math.MaxInt64/factor:
		return math.MaxInt64, nil
	}
	return n * factor, nil
}

// withoutUnit splits a size into its number and its unit. As in PostgreSQL, 1 kB is 1024 B.
func withoutUnit(s string) (number string, factor int64) {
	upper := strings.ToUpper(strings.TrimSpace(s))
	for i, unit := range []string{"TB", "GB", "MB", "KB", "B"} {
		if number, has := strings.CutSuffix(upper, unit); has {
			return strings.TrimSpace(number), 1 << (10 * (4 - i))
		}
	}
	return upper, 1
}

func wrong(s string, want kind) error {
	if want == boolean {
		return fmt.Errorf("%q is neither true nor false", s)
	}
	return fmt.Errorf("%q is not %s", s, want)
}
