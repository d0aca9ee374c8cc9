package loosefk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/repo"
)

// The definitions file is edited line by line, so that comments, order and form of all else stay. What
// comes out is read again: it must say what it said before, and the one entry more or less. Else the
// file stays as it is, and the operator has to edit it.

// Entry is a definition as lines of the file, below its child table.
func Entry(key repo.LooseForeignKey) string {
	return scalar(key.Table) + ":\n" + strings.Join(entryLines(key, "  "), "\n") + "\n"
}

// withEntry adds the lines of a definition to an error, each as an error of its own.
func withEntry(err error, key repo.LooseForeignKey) error {
	all := []error{err}
	for line := range strings.Lines(Entry(key)) {
		all = append(all, errors.New(strings.TrimSuffix(line, "\n")))
	}
	return errors.Join(all...)
}

// entryLines are the lines of a list's item.
func entryLines(key repo.LooseForeignKey, indent string) []string {
	lines := []string{"- table: " + scalar(key.Parent), "  column: " + columnsOf(key.Columns)}
	if key.Key != nil {
		lines = append(lines, "  key: "+columnsOf(key.Key))
	}
	lines = append(lines, "  on_delete: "+key.OnDelete)
	for i := range lines {
		lines[i] = indent + lines[i]
	}
	return lines
}

func columnsOf(names []string) string {
	if len(names) == 1 {
		return scalar(names[0])
	}
	written := make([]string, len(names))
	for i, name := range names {
		written[i] = scalar(name)
		if written[i] == name && strings.ContainsAny(name, ",[]{}") {
			written[i] = "'" + name + "'"
		}
	}
	return "[" + strings.Join(written, ", ") + "]"
}

// scalar is a string of YAML, in quotes where it needs them.
func scalar(text string) string {
	out, err := yaml.Marshal(text)
	if err != nil || strings.Count(string(out), "\n") > 1 {
		return fmt.Sprintf("%q", text)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// errNotEditable: the file's form is one that is not edited here.
var errNotEditable = errors.New("its form is one that this command does not edit")

// otherLineBreaks also end a line in YAML. Here lines end with \n or \r\n.
const otherLineBreaks = "\r\u0085\u2028\u2029"

// Add puts a definition into the file: behind the others of its child, or where its child belongs by
// name.
func (d *Definitions) Add(key repo.LooseForeignKey) error {
	return d.edit(append(slices.Clone(d.Keys), key), func(root *yaml.Node, lines []string) ([]string, error) {
		return added(root, lines, key)
	})
}

// Remove takes a definition out of the file, and its child with the last of its entries.
func (d *Definitions) Remove(key repo.LooseForeignKey) error {
	left := slices.DeleteFunc(slices.Clone(d.Keys), func(k repo.LooseForeignKey) bool {
		return reflect.DeepEqual(k, key)
	})
	return d.edit(left, func(root *yaml.Node, lines []string) ([]string, error) {
		return removed(root, lines, key)
	})
}

// edit changes the lines of the file, and d with it. The definitions must then be want, in whatever
// order.
func (d *Definitions) edit(
	want []repo.LooseForeignKey, change func(*yaml.Node, []string) ([]string, error),
) error {
	// Of a link the file behind it is replaced.
	path, err := filepath.EvalSymlinks(d.File)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if bytes.ContainsAny(bytes.ReplaceAll(content, []byte("\r\n"), nil), otherLineBreaks) {
		return fmt.Errorf("%s: %w", d.File, errNotEditable)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return err
	}
	var root *yaml.Node
	if len(document.Content) > 0 && !isNull(document.Content[0]) {
		root = document.Content[0]
	}
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	if len(content) == 0 {
		lines = nil
	}
	if lines, err = change(root, lines); err != nil {
		return fmt.Errorf("%s: %w", d.File, err)
	}
	edited := strings.Join(lines, "\n") + "\n"
	file := definitionsFile{Definitions: Definitions{File: d.File}}
	file.read([]byte(edited))
	if len(file.problems) > 0 || !sameKeys(file.Keys, want) {
		return fmt.Errorf("%s: %w", d.File, errNotEditable)
	}
	if err := replaceFile(path, []byte(edited)); err != nil {
		return err
	}
	*d = file.Definitions
	return nil
}

// sameKeys compares definitions in whatever order.
func sameKeys(one, other []repo.LooseForeignKey) bool {
	text := func(keys []repo.LooseForeignKey) []string {
		all := make([]string, len(keys))
		for i, k := range keys {
			all[i] = fmt.Sprintf("%+v", k)
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(text(one), text(other))
}

// replaceFile writes beside the file and renames, so that no server reads half of it.
func replaceFile(path string, content []byte) (err error) {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary.Name())
		}
	}()
	_, err = temporary.Write(content)
	err = errors.Join(err, KeepOwner(temporary, info), temporary.Chmod(info.Mode().Perm()),
		temporary.Sync(), temporary.Close())
	if err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}

// KeepOwner gives a file that is to replace another one the owner and group of that: else who
// could read the old one might not read the new one.
func KeepOwner(file *os.File, old os.FileInfo) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	is, known := info.Sys().(*syscall.Stat_t)
	was, alsoKnown := old.Sys().(*syscall.Stat_t)
	if !known || !alsoKnown || is.Uid == was.Uid && is.Gid == was.Gid {
		return nil
	}
	if err := file.Chown(int(was.Uid), int(was.Gid)); err != nil {
		return fmt.Errorf("%s stays as it was, for a new one could not get its owner %d and group %d "+
			"(%w): run the command as that user, or as root", old.Name(), was.Uid, was.Gid, reason(err))
	}
	return nil
}

// added are the lines with an entry more.
func added(root *yaml.Node, lines []string, key repo.LooseForeignKey) ([]string, error) {
	if root == nil {
		return append(lines, strings.Split(strings.TrimSuffix(Entry(key), "\n"), "\n")...), nil
	}
	if root.Kind != yaml.MappingNode || root.Style&yaml.FlowStyle != 0 {
		return nil, errNotEditable
	}
	indent, at := "  ", len(lines)
	for name, list := range pairs(root) {
		if list.Kind == yaml.SequenceNode && list.Style&yaml.FlowStyle == 0 {
			indent = strings.Repeat(" ", list.Column-1)
		}
		switch {
		case name.Value == key.Table && (list.Kind != yaml.SequenceNode || list.Style&yaml.FlowStyle != 0):
			return nil, errNotEditable
		case name.Value == key.Table:
			return slices.Insert(lines, lastLine(list), entryLines(key, indent)...), nil
		case name.Value > key.Table && at == len(lines):
			at = aboveComments(lines, name.Line-1)
		}
	}
	entry := append([]string{scalar(key.Table) + ":"}, entryLines(key, indent)...)
	return slices.Insert(lines, at, entry...), nil
}

// removed are the lines without an entry.
func removed(root *yaml.Node, lines []string, key repo.LooseForeignKey) ([]string, error) {
	if root == nil || root.Kind != yaml.MappingNode || root.Style&yaml.FlowStyle != 0 {
		return nil, errNotEditable
	}
	for name, list := range pairs(root) {
		if name.Value != key.Table || list.Kind != yaml.SequenceNode {
			continue
		}
		if len(list.Content) == 1 {
			return slices.Delete(lines, name.Line-1, lastLine(list)), nil
		}
		if list.Style&yaml.FlowStyle != 0 {
			return nil, errNotEditable
		}
		for _, item := range list.Content {
			file := definitionsFile{}
			e := entry{file: &file, key: repo.LooseForeignKey{Table: key.Table}}
			if e.read(followed(item)) && reflect.DeepEqual(e.key, key) {
				return slices.Delete(lines, item.Line-1, lastLine(item)), nil
			}
		}
	}
	return nil, errNotEditable
}

// lastLine is the last line of a node, from 1. What it misses, such as a text over several lines,
// shows when the file is read again.
func lastLine(node *yaml.Node) int {
	last := node.Line
	for _, below := range node.Content {
		last = max(last, lastLine(below))
	}
	return last
}

// aboveComments is the line above the comments that stand directly above a line, both from 0.
func aboveComments(lines []string, at int) int {
	for at > 0 && strings.HasPrefix(strings.TrimSpace(lines[at-1]), "#") {
		at--
	}
	return at
}
