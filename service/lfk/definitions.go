package lfk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
)

// Definitions are the loose foreign keys of a definitions file.
type Definitions struct {
	// File is the path of the file.
	File string
	// Keys in file order, without identical repetitions.
	Keys []lfk.Definition
	// Warnings are harmless faults of the file.
	Warnings []Finding
}

// ByParent groups the definitions by parent table, each group in file order.
func (d *Definitions) ByParent() map[string][]lfk.Definition {
	parents := map[string][]lfk.Definition{}
	for _, k := range d.Keys {
		parents[k.Parent] = append(parents[k.Parent], k)
	}
	return parents
}

// DefinitionsError lists all faults of a definitions file.
type DefinitionsError struct {
	// Problems are of the form "FILE:LINE: child[index].key: reason", index from 0, in file order.
	Problems []string
}

// Error has one problem per line.
func (e *DefinitionsError) Error() string { return strings.Join(e.Problems, "\n") }

// Unwrap returns an error for each problem.
func (e *DefinitionsError) Unwrap() []error {
	problems := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		problems[i] = errors.New(p)
	}
	return problems
}

// LoadDefinitions reads a YAML file in the form of GitLab's config/gitlab_loose_foreign_keys.yml: a
// mapping of child tables to lists of entries. It returns a [*DefinitionsError] for a file with any
// malformed part: a misread key might delete the wrong rows.
func LoadDefinitions(path string) (*Definitions, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, &DefinitionsError{Problems: []string{fmt.Sprintf("cannot read %s (%s): correct "+
			"workers.%s.definitions", path, reason(err), Name)}}
	}
	file := definitionsFile{Definitions: Definitions{File: path}}
	file.read(content)
	if len(file.problems) > 0 {
		return nil, &DefinitionsError{Problems: file.problems}
	}
	return &file.Definitions, nil
}

// reason returns an error without the path, which the message has already.
func reason(err error) error {
	if pathError, ok := errors.AsType[*os.PathError](err); ok {
		return pathError.Err
	}
	return err
}

// definitionsFile is a file during reading.
type definitionsFile struct {
	Definitions
	problems []string
}

// problem records a fault in a line, 0 if that is unknown, at a place: "child[0].column", or "" for
// the file as a whole.
func (f *definitionsFile) problem(line int, place, format string, args ...any) {
	prefix := f.File + ": "
	if line > 0 {
		prefix = fmt.Sprintf("%s:%d: ", f.File, line)
	}
	if place != "" {
		prefix += place + ": "
	}
	f.problems = append(f.problems, prefix+fmt.Sprintf(format, args...))
}

// read parses a file and collects its entries and problems. An empty file, or one with only null,
// has no entries. A second YAML document is a problem.
func (f *definitionsFile) read(content []byte) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document, more yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return
	}
	if err == nil {
		if err = decoder.Decode(&more); err == nil {
			f.problem(more.Line, "", "the file has a second YAML document: put all definitions into one document")
			return
		}
	}
	if !errors.Is(err, io.EOF) {
		f.notYAML(err)
		return
	}
	root := followed(document.Content[0])
	switch {
	case isNull(root):
	case root.Kind != yaml.MappingNode:
		f.problem(root.Line, "", "is %s: write a mapping of child tables to lists of entries", kind(root))
	default:
		f.children(root)
	}
}

// notYAML records a syntax error. The library names the line of most of them.
func (f *definitionsFile) notYAML(err error) {
	line, text := 0, strings.TrimPrefix(err.Error(), "yaml: ")
	if n, _ := fmt.Sscanf(text, "line %d: ", &line); n == 1 {
		_, text, _ = strings.Cut(text, ": ")
	}
	f.problem(line, "", "is not YAML: %s", text)
}

// children reads the mapping of child tables. It warns once if they are not in byte order.
func (f *definitionsFile) children(root *yaml.Node) {
	seen := map[string]bool{}
	last, unsorted := "", ""
	for name, value := range pairs(root) {
		child, ok := f.childName(name)
		if !ok {
			continue
		}
		if seen[child] {
			f.problem(name.Line, child, "occurs twice: put all entries of the table into one list")
			continue
		}
		seen[child] = true
		if child < last && unsorted == "" {
			unsorted = child
		}
		last = child
		f.entries(child, followed(value))
	}
	if unsorted != "" {
		f.warn("not_sorted", unsorted, "sort the child tables in "+f.File+" by name, starting with this table")
	}
}

// childName returns the name of a child table. It reports false, and adds a problem, for merge
// keys and for names that are not valid strings.
func (f *definitionsFile) childName(node *yaml.Node) (string, bool) {
	node = followed(node)
	place := ""
	if node.Kind == yaml.ScalarNode {
		place = node.Value
	}
	if node.Tag == "!!merge" {
		f.problem(node.Line, place, "merge keys are not supported: write the entries out")
		return "", false
	}
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" {
		f.problem(node.Line, place, "is %s, but a table name must be a string: put the name in quotes", kind(node))
		return "", false
	}
	if wrong := wrongTable(node.Value); wrong != "" {
		f.problem(node.Line, place, "the table name %s", wrong)
		return "", false
	}
	return node.Value, true
}

// entries adds the entries of one child table. An entry with a problem is left out. An exact
// duplicate is a warning, and only the first copy counts.
func (f *definitionsFile) entries(child string, list *yaml.Node) {
	if list.Kind != yaml.SequenceNode {
		f.problem(list.Line, child, "is %s: write a list of entries", kind(list))
		return
	}
	var known []lfk.Definition
	for i, item := range list.Content {
		place := fmt.Sprintf("%s[%d]", child, i)
		e := entry{file: f, place: place, key: lfk.Definition{Table: child}}
		if !e.read(followed(item)) {
			continue
		}
		if slices.ContainsFunc(known, func(k lfk.Definition) bool {
			return reflect.DeepEqual(k,
				e.key)
		}) {
			f.warn("duplicate_definition", e.key.String(), place+" repeats a previous entry and is ignored: remove "+place+" from "+f.File)
			continue
		}
		known = append(known, e.key)
		f.Keys = append(f.Keys, e.key)
	}
}

// warn adds a warning, which does not make the file invalid.
func (f *definitionsFile) warn(code, object, advice string) {
	f.Warnings = append(f.Warnings, Finding{
		Severity: SeverityWarning, Code: code, Object: object,
		Advice: advice,
	})
}

// maxNameBytes is the maximum length of a name in PostgreSQL. A longer name would be cut off, and
// mean another table.
const maxNameBytes = 63

// wrongTable returns why a name cannot be a table's. "" means it can.
func wrongTable(name string) string {
	if wrong := wrongName(name); wrong != "" && !strings.ContainsAny(name, `."`) {
		return wrong
	}
	t, err := catalog.ParseTable(name)
	if err != nil {
		return err.Error()
	}
	if t.Schema != "" || strings.HasPrefix(name, ".") {
		if wrong := wrongName(t.Schema); wrong != "" {
			return "has a schema whose name " + wrong
		}
	}
	return wrongName(t.Name)
}

// wrongName returns why a name cannot be one of PostgreSQL's. "" means it can.
func wrongName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxNameBytes:
		return fmt.Sprintf("has %d bytes, but PostgreSQL allows at most %d", len(name),
			maxNameBytes)
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return "has characters that PostgreSQL does not allow in names"
	}
	return ""
}

// pairs yields the keys and values of a mapping.
func pairs(mapping *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			if !yield(mapping.Content[i], mapping.Content[i+1]) {
				return
			}
		}
	}
}

// followed returns the node itself, or the target of an alias.
func followed(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// isNull reports whether a node is the YAML null: null, ~ or an empty value.
func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode &&
		node.ShortTag() == "!!null"
}

// kind describes a node for messages.
func kind(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.MappingNode:
		return "a mapping"
	case node.Kind == yaml.SequenceNode && len(node.Content) == 0:
		return "an empty list"
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(node):
		return "null"
	}
	article := map[string]string{
		"!!str": "the string ", "!!int": "the integer ",
		"!!bool": "the boolean ", "!!float": "the number ",
	}
	return fmt.Sprintf("%s%q", article[node.ShortTag()], shortened(node.Value))
}

// shortened returns at most the first 80 characters of a text, for a message.
func shortened(text string) string {
	const most = 80
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}
