package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/internal/format"
)

// value is a value as written, and its place. Outside the file, its line is lastLine.
type value struct {
	text, where string
	line        int
}

// reader collects the values of a file.
type reader struct {
	file     string
	keys     []Key
	values   map[string]value
	mistakes []mistake
}

// readDocument reads the YAML file. It returns nil for a missing or empty file.
func readDocument(file string) (*yaml.Node, []mistake) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, []mistake{{unreadLine, fmt.Errorf("cannot read the configuration: %w", err)}}
	}
	var document, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, []mistake{{unreadLine, fmt.Errorf("%s: %w%s", file, err, hint(content))}}
	}
	if !errors.Is(decoder.Decode(&second), io.EOF) {
		return nil, []mistake{{unreadLine, fmt.Errorf("%s contains more than one YAML document: use only one", file)}}
	}
	return document.Content[0], nil
}

// fileValues returns the values of a document: nested mappings, one for each dot of a key.
func fileValues(file string, document *yaml.Node, keys []Key) (map[string]value, []mistake) {
	r := reader{file: file, keys: keys, values: map[string]value{}}
	if document != nil {
		r.mapping("", document)
	}
	return r.values, r.mistakes
}

// hint explains the syntax errors of an unquoted cron expression and of a tab.
func hint(content []byte) string {
	for i, line := range strings.Split(string(content), "\n") {
		if indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; strings.Contains(indent, "\t") {
			return fmt.Sprintf(" (line %d is indented with a tab: use spaces)", i+1)
		}
	}
	if regexp.MustCompile(`(?m)^\s*schedule:\s*\*`).Match(content) {
		return ` (put a schedule that starts with * in quotes, as in schedule: "* * * * *")`
	}
	return ""
}

func (r *reader) mapping(prefix string, node *yaml.Node) {
	node = resolved(node)
	switch {
	case node.Tag == "!!null":
		return
	case node.Kind != yaml.MappingNode:
		name := strings.TrimSuffix(prefix, ".")
		if name == "" {
			name = "the configuration"
		}
		r.mistake(node, name, errors.New("must be a mapping of keys to values"))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, child := node.Content[i], node.Content[i+1]
		path := prefix + name.Value
		if seen[path] {
			r.mistake(name, path, errors.New("duplicate key: remove one of the lines"))
			continue
		}
		seen[path] = true
		r.entry(path, name, child)
	}
}

func (r *reader) entry(path string, name, child *yaml.Node) {
	section := false
	for _, k := range r.keys {
		if k.Path == path {
			r.scalar(k, child)
			return
		}
		section = section || strings.HasPrefix(k.Path, path+".")
	}
	if database, of := strings.CutPrefix(path, "databases."); !section && of &&
		!strings.Contains(database, ".") {
		r.mistake(name, path, errors.New("unknown key: "+nameRule))
		return
	}
	if text := removed(path); text != "" {
		r.mistake(name, path, errors.New(text))
		return
	}
	if !section {
		r.mistake(name, path, errors.New("unknown key"+r.Nearest(path)))
		return
	}
	r.mapping(path+".", child)
}

// removed returns what to do about a key of an older version, "" for other keys.
func removed(path string) string {
	switch path {
	case "load.max_autovacuum", "load.max_wal_archive_backlog":
		return "this limit was removed: delete the key, or set load.max_wal_rate instead"
	case "load.patience":
		return "this key was renamed: use load.timeout"
	}
	return ""
}

// scalar accepts a value of the key's YAML type. Durations are text, because a number has no unit,
// except that 0 is allowed. Sizes may be numbers of bytes.
func (r *reader) scalar(k Key, node *yaml.Node) {
	node = resolved(node)
	if k.kind == mapping {
		r.values[k.Path] = value{flow(node), r.where(node, k.Path), node.Line}
		return
	}
	tags := map[kind]string{text: "!!str", boolean: "!!bool", integer: "!!int", duration: "!!str", size: "!!str"}
	tag := node.Tag
	if strings.Trim(node.Value, "0123456789") == "" && tag == "!!float" {
		tag = "!!int" // of more than 64 bits
	}
	number := tag == "!!int" && (k.kind == size || k.kind == duration && node.Value == "0")
	switch {
	case node.Kind != yaml.ScalarNode:
		r.mistake(node, k.Path, fmt.Errorf("must be %s", k.kind))
	case node.Tag == "!!null":
		r.mistake(node, k.Path, fmt.Errorf("has no value: set %s, or remove the key", k.kind))
	case tag != tags[k.kind] && k.kind == text:
		r.mistake(node, k.Path, errors.New("must be text: put the value in quotes"))
	case tag != tags[k.kind] && !number:
		r.mistake(node, k.Path, wrong(node.Value, k.kind))
	default:
		r.values[k.Path] = value{node.Value, r.where(node, k.Path), node.Line}
	}
}

// flow returns a node as text. [Key.setMapping] reports its errors.
func flow(node *yaml.Node) string {
	out, err := yaml.Marshal(node)
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(out))
}

func resolved(node *yaml.Node) *yaml.Node {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	return node
}

func (r *reader) where(node *yaml.Node, path string) string {
	return fmt.Sprintf("%s:%d: %s", r.file, node.Line, path)
}

func (r *reader) mistake(node *yaml.Node, path string, err error) {
	r.mistakes = append(r.mistakes, mistake{node.Line, fmt.Errorf("%s: %w", r.where(node, path), err)})
}

// Nearest suggests a key or a section for an unknown key, or lists the keys of its section.
func (r *reader) Nearest(path string) string {
	candidates := make([]string, 0, len(r.keys))
	depth := strings.Count(path, ".") + 1
	for _, k := range r.keys {
		parts := strings.Split(k.Path, ".")
		candidates = append(candidates, k.Path, strings.Join(parts[:min(depth, len(parts))], "."))
	}
	if near := format.Nearest(path, candidates); near != "" {
		return " (did you mean " + near + "?)"
	}
	section := path[:strings.LastIndex(path, ".")+1]
	var names []string
	for _, k := range r.keys {
		if rest, ok := strings.CutPrefix(k.Path, section); ok && section != "" {
			name, _, _ := strings.Cut(rest, ".")
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ": use one of " + strings.Join(slices.Compact(names), ", ")
}
