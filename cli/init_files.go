package cli

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/internal/docs"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
)

// emptyDefinitions is the content of a new definitions file.
//
//go:embed definitions.yml
var emptyDefinitions string

// configTemplate is the template of the configuration file.
//
//go:embed caretaker.yml.tmpl
var configTemplate string

// text returns the content of the configuration file.
func (s *setup) text() (string, error) {
	definitions, err := filepath.Abs(s.Definitions)
	if err != nil {
		return "", fmt.Errorf("cannot find the definitions file %s: %w", s.Definitions, err)
	}
	quote := func(value string) string { return "'" + strings.ReplaceAll(value, "'", "''") + "'" }
	parsed, err := template.New("").Funcs(template.FuncMap{"quote": quote}).Parse(configTemplate)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = parsed.Execute(&text, map[string]any{
		"Setup": s, "Password": s.passwords() != nil, "Definitions": definitions,
		"Worker": lfk.Name, "Variable": config.Variable("databases.main.url"),
		"Docs": docs.URL("reference/configuration.md"),
	})
	return text.String(), err
}

// passwords returns the names of the databases whose URL has a password.
func (s *setup) passwords() (names []string) {
	all := []config.Database{{Name: mainDatabase, URL: s.URL}, {Name: mainDatabase, URL: s.Replica}}
	for _, d := range append(all, s.Others...) {
		u, err := url.Parse(d.URL)
		has := err == nil && u.User != nil
		if has {
			_, has = u.User.Password()
		}
		if has || strings.Contains(d.URL, "password=") {
			names = append(names, d.Name)
		}
	}
	return names
}

// writeFiles checks that the configuration loads, and then writes it. It also writes the
// definitions if their file does not exist.
func (s *setup) writeFiles() error {
	text, err := s.text()
	if err != nil {
		return err
	}
	// 1. Choose the mode. A file with passwords is for its owner, or for the group of the service.
	mode := fs.FileMode(0o644)
	if s.passwords() != nil {
		mode = 0o600
	}
	old, err := os.Stat(s.file)
	replaces := s.force && err == nil
	if replaces && old.Mode().Perm()&0o007 == 0 {
		mode = old.Mode().Perm()
	}
	// 2. Write a temporary file in the same directory.
	temporary, err := os.CreateTemp(filepath.Dir(s.file), ".caretaker-*.yml")
	if err != nil {
		return fmt.Errorf("cannot write the configuration: %w", err)
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.WriteString(text)
	if replaces {
		err = errors.Join(err, lfk.KeepOwner(temporary, old))
	}
	if mode == 0o600 && letServiceRead(temporary) {
		mode, s.groupReads = 0o640, true
	}
	err = errors.Join(err, temporary.Chmod(mode), temporary.Close())
	if err != nil {
		return fmt.Errorf("cannot write the configuration: %w", err)
	}
	// 3. Load it. A mistake leaves the old files unchanged.
	if _, err := s.std.Env.Load(temporary.Name(), &service.Config{}); err != nil {
		var mistakes []error
		readable := strings.ReplaceAll(err.Error(), temporary.Name(), filepath.Base(s.file))
		readable = "nothing was written, because the configuration would be invalid:\n" + readable
		for line := range strings.SplitSeq(readable, "\n") {
			mistakes = append(mistakes, errors.New(line))
		}
		return errors.Join(mistakes...)
	}
	if err := s.writeDefinitions(); err != nil {
		return err
	}
	// 4. Move it into place, and keep the old file. Without force, Link fails if the file exists.
	if replaces {
		err = fs.ErrExist
		for n := 1; errors.Is(err, fs.ErrExist); n++ {
			s.backup = fmt.Sprintf("%s.%d.bak", s.file, n)
			err = os.Link(s.file, s.backup)
		}
		if err == nil {
			err = os.Rename(temporary.Name(), s.file)
		}
	} else {
		err = os.Link(temporary.Name(), s.file)
	}
	if err != nil {
		return fmt.Errorf("cannot write the configuration: %w", err)
	}
	return nil
}

// serviceGroup is the group of the service, which a package creates.
const serviceGroup = "caretaker"

// letServiceRead gives a file of root to the group of the service. It reports whether it did.
func letServiceRead(file *os.File) bool {
	group, err := user.LookupGroup(serviceGroup)
	if err != nil || os.Geteuid() != 0 {
		return false
	}
	id, err := strconv.Atoi(group.Gid)
	return err == nil && file.Chown(-1, id) == nil
}

// writeDefinitions keeps an existing file.
func (s *setup) writeDefinitions() error {
	const create = os.O_CREATE | os.O_EXCL | os.O_WRONLY
	file, err := os.OpenFile(s.Definitions, create, 0o644) //nolint:gosec // no secret
	if errors.Is(err, fs.ErrExist) {
		_, err = lfk.LoadDefinitions(s.Definitions)
		return err
	}
	if err != nil {
		return fmt.Errorf("cannot write the definitions: %w", err)
	}
	s.wroteRules = true
	_, err = file.WriteString(emptyDefinitions)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("cannot write the definitions: %w", err)
	}
	return nil
}

// done prints the written files and the next commands.
func (s *setup) done() error {
	next := s.next()
	if s.asJSON {
		return s.json(map[string]any{
			"config": s.file, "backup": s.backup, "definitions": s.Definitions, "use": s.Use, "next": next,
		})
	}
	s.println("wrote %s (use: %s)", s.file, s.Use)
	if s.backup != "" {
		s.println("  the old file is %s", s.backup)
	}
	if s.passwords() != nil {
		readers := "its owner"
		if s.groupReads {
			readers += " and the group " + serviceGroup
		}
		s.println("  only %s can use this file with --config, because it contains a password. To change that, move the "+
			"URL to %s (in a package, in caretaker.env), then run `chmod 644 %s`.", readers,
			config.Variable("databases.main.url"), format.Argument(s.file))
	}
	if s.wroteRules {
		s.println("wrote %s with examples: add your definitions to this file", s.Definitions)
	} else {
		s.println("kept %s", s.Definitions)
	}
	s.describeCascades()
	s.println("\nnext:")
	for _, command := range next {
		s.println("  %s", command)
	}
	return nil
}

// describeCascades prints foreign keys that could become loose foreign keys.
func (s *setup) describeCascades() {
	if s.Use == service.UseGitLab || len(s.survey.Cascades) == 0 {
		return
	}
	s.println("\nloose foreign keys can replace these foreign keys with ON DELETE CASCADE and many child rows:")
	for _, c := range s.survey.Cascades {
		index := ""
		if !c.Indexed {
			index = "create an index on " + c.Child + " (" + strings.Join(c.Columns, ", ") + "), then run "
		}
		s.println("  %s.%s -> %s, about %s rows: %scaretaker lfk adopt %s --plan --config %s", c.Child,
			lfkrepo.ColumnList(c.Columns), c.Parent, number(c.Rows), index,
			catalog.ReferenceArgument(c.Child, c.Columns), s.file)
	}
}

// next returns the next commands.
func (s *setup) next() []string {
	lines := []string{
		"caretaker migrate --config " + s.file,
		"caretaker lfk install --config " + s.file,
		"caretaker lfk track TABLE --config " + s.file,
		"caretaker lfk lint --config " + s.file,
		"caretaker serve --config " + s.file,
		"caretaker run " + lfk.Name + " --dry-run --address " + s.Listen,
	}
	if s.Use == service.UseGitLab {
		// GitLab creates the queue and its triggers itself.
		lines = append(lines[:1], lines[3:]...)
	}
	return lines
}
