package lfk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/repo/lfk"
)

// An edit changes the YAML document of the definitions file: it keeps comments, order and form of
// the entries, but not blank lines. The result is read again. It must differ from the old
// definitions only by the edited entry. Else the file does not change: the operator must edit it.

// Entry returns definitions as lines of the file, below their child tables.
func Entry(keys ...lfk.Definition) string {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, key := range keys {
		add(root, key)
	}
	text, err := marshal(root)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// entryNode returns a definition as an item of its child's list.
func entryNode(key lfk.Definition) *yaml.Node {
	item := mapping("table", text(key.Parent))
	item.Content = append(item.Content, text("column"), columnsOf(key.Columns))
	if key.Key != nil {
		item.Content = append(item.Content, text("key"), columnsOf(key.Key))
	}
	item.Content = append(item.Content, text("on_delete"), text(key.OnDelete))
	return item
}

// columnsOf returns one column as a string, and several as a list in a single line.
func columnsOf(names []string) *yaml.Node {
	if len(names) == 1 {
		return text(names[0])
	}
	list := sequence()
	list.Style = yaml.FlowStyle
	for _, name := range names {
		list.Content = append(list.Content, text(name))
	}
	return list
}

// text returns a string node. yaml quotes the value where YAML would read another type.
func text(value string) *yaml.Node {
	node := &yaml.Node{}
	node.SetString(value)
	return node
}

func mapping(name string, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{text(name), value}}
}

func sequence(items ...*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Content: items}
}

// marshal writes a document in the form of GitLab's file.
func marshal(document *yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	err := errors.Join(encoder.Encode(document), encoder.Close())
	return out.Bytes(), err
}

// errNotEditable: this code does not edit a file of this form.
var errNotEditable = errors.New("this command cannot edit a definitions file with this layout")

// Add adds a definition to the file: after the others of its child, or where its child belongs by
// name.
func (d *Definitions) Add(key lfk.Definition) error {
	err := d.edit(append(slices.Clone(d.Keys), key), func(root *yaml.Node) { add(root, key) })
	return unwritten(err, "add the following lines with an editor, then run this command again", key)
}

// Remove removes a definition from the file, and its child with its last entry.
func (d *Definitions) Remove(key lfk.Definition) error {
	left := slices.DeleteFunc(slices.Clone(d.Keys), func(k lfk.Definition) bool {
		return reflect.DeepEqual(k, key)
	})
	err := d.edit(left, func(root *yaml.Node) { remove(root, key) })
	return unwritten(err, "remove the following lines with an editor", key)
}

// UnwrittenError means that definitions could not be edited in their file.
type UnwrittenError struct {
	err    error
	advice string
	keys   []lfk.Definition
}

func unwritten(err error, advice string, key lfk.Definition) error {
	if err == nil {
		return nil
	}
	return &UnwrittenError{err: err, advice: advice, keys: []lfk.Definition{key}}
}

// Add adds another definition that the file needs.
func (e *UnwrittenError) Add(key lfk.Definition) { e.keys = append(e.keys, key) }

// Error returns the reason, what to do, and the lines to edit.
func (e *UnwrittenError) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns the reason with what to do, and each line to edit as an error of its own.
func (e *UnwrittenError) Unwrap() []error {
	separator := ": "
	if errors.Is(e.err, fs.ErrPermission) {
		separator = ", or " // The reason has its own advice.
	}
	return WithEntry(fmt.Errorf("%w%s%s", e.err, separator, e.advice), e.keys...)
}

// WithEntry returns an error and the lines of definitions, each as an error of its own.
func WithEntry(err error, keys ...lfk.Definition) []error {
	all := []error{err}
	for line := range strings.Lines(Entry(keys...)) {
		all = append(all, errors.New(strings.TrimSuffix(line, "\n")))
	}
	return all
}

// edit changes the document of the file, and d with it. The definitions must then equal want, in
// any order.
func (d *Definitions) edit(want []lfk.Definition, change func(root *yaml.Node)) error {
	// If path is a symbolic link, replace the target.
	path, err := filepath.EvalSymlinks(d.File)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return err
	}
	header := []byte{}
	if len(document.Content) == 0 {
		// The file has nothing but comments, which the document leaves out.
		if header = bytes.TrimSpace(content); len(header) > 0 {
			header = append(header, "\n\n"...)
		}
		document = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	root := followed(document.Content[0])
	if isNull(root) {
		*root = yaml.Node{Kind: yaml.MappingNode, HeadComment: root.HeadComment}
	}
	first := takeHeader(&document, root)
	change(root)
	giveHeader(&document, root, first)
	edited, err := marshal(&document)
	if err != nil {
		return err
	}
	edited = append(header, edited...)
	file := definitionsFile{Definitions: Definitions{File: d.File}}
	file.read(edited)
	if len(file.problems) > 0 || !sameKeys(file.Keys, want) {
		return fmt.Errorf("%s: %w", d.File, errNotEditable)
	}
	if err := replaceFile(path, edited); err != nil {
		return err
	}
	*d = file.Definitions
	return nil
}

// takeHeader removes and returns the comment at the start of the file, if the first child has it.
func takeHeader(document, root *yaml.Node) (comment string) {
	if document.HeadComment == "" && root.HeadComment == "" && len(root.Content) > 0 {
		comment, root.Content[0].HeadComment = root.Content[0].HeadComment, ""
	}
	return comment
}

// giveHeader puts the comment back at the start of the file.
func giveHeader(document, root *yaml.Node, comment string) {
	switch {
	case comment == "":
	case len(root.Content) == 0:
		document.HeadComment = comment
	case root.Content[0].HeadComment == "":
		root.Content[0].HeadComment = comment
	default:
		root.Content[0].HeadComment = comment + "\n" + root.Content[0].HeadComment
	}
}

// add adds an entry after the others of its child, or its child before the next one by name.
func add(root *yaml.Node, key lfk.Definition) {
	at := len(root.Content)
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch name, list := root.Content[i], followed(root.Content[i+1]); {
		case name.Value == key.Table:
			list.Content = append(list.Content, entryNode(key))
			return
		case name.Value > key.Table && at == len(root.Content):
			at = i
		}
	}
	child := mapping(key.Table, sequence(entryNode(key)))
	root.Content = slices.Insert(root.Content, at, child.Content...)
}

// remove removes an entry.
func remove(root *yaml.Node, key lfk.Definition) {
	is := func(item *yaml.Node) bool {
		e := entry{file: &definitionsFile{}, key: lfk.Definition{Table: key.Table}}
		return e.read(followed(item)) && reflect.DeepEqual(e.key, key)
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if list := followed(root.Content[i+1]); root.Content[i].Value == key.Table {
			if list.Content = slices.DeleteFunc(list.Content, is); len(list.Content) == 0 {
				root.Content = slices.Delete(root.Content, i, i+2)
			}
			return
		}
	}
}

// sameKeys compares definitions in any order.
func sameKeys(one, other []lfk.Definition) bool {
	text := func(keys []lfk.Definition) []string {
		all := make([]string, len(keys))
		for i, k := range keys {
			all[i] = fmt.Sprintf("%+v", k)
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(text(one), text(other))
}

// replaceFile writes a temporary file and renames it, so that no server reads half of it.
func replaceFile(path string, content []byte) (err error) {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("cannot create a file in the folder %s, which replaces %s (%w): run the command as a user "+
			"who can write to the folder", filepath.Dir(path), filepath.Base(path), reason(err))
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

// KeepOwner gives a replacement file the owner and group of the old file, so that its readers can
// read the new one.
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
		return fmt.Errorf("cannot change %s, because the current user cannot preserve the owner %d and the "+
			"group %d of the file (%w): run the command as the owner of the file or as "+
			"root", old.Name(), was.Uid, was.Gid, reason(err))
	}
	return nil
}
