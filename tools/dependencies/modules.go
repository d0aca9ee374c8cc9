package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// platforms are those of the release: what is linked differs between them.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}

// allowed are the licences, by SPDX identifier, of modules that a program under Apache-2.0 may
// contain. The program is passed on with the texts of the licences.
var allowed = []string{
	"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", "Unlicense",
}

// readByPeople are licences whose words the classifier does not know.
var readByPeople = map[string]string{
	// "All these files have been put into the public domain."
	"github.com/xi2/xz": "LicenseRef-public-domain",
}

// standardLibrary stands for what every Go program has in it.
const standardLibrary = "Go standard library"

// module is one that is linked into caretaker, on one of the platforms at least.
type module struct {
	path, version string
	// licences are SPDX identifiers. texts and notices are their files, by name.
	licences       []string
	texts, notices map[string]string
}

// linked are the modules of the program in a folder, by their paths, Go's own library first.
func linked(folder string) ([]module, error) {
	folders, versions := map[string]string{}, map[string]string{}
	for _, platform := range platforms {
		if err := list(folder, platform, folders, versions); err != nil {
			return nil, err
		}
	}
	root, err := run(folder, nil, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	version, err := run(folder, nil, "list", "-m", "-f", "{{.GoVersion}}")
	if err != nil {
		return nil, err
	}
	folders[standardLibrary], versions[standardLibrary] = root, "go"+version

	words, err := assets.DefaultClassifier()
	if err != nil {
		return nil, err
	}
	modules := make([]module, 0, len(folders))
	for path, from := range folders {
		m := module{path: path, version: versions[path]}
		if err := m.read(from, words); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		modules = append(modules, m)
	}
	// An upper case G comes before all paths.
	slices.SortFunc(modules, func(a, b module) int { return cmp.Compare(a.path, b.path) })
	return modules, nil
}

// list notes the modules of a platform, with their folders and versions.
func list(folder, platform string, folders, versions map[string]string) error {
	system, architecture, _ := strings.Cut(platform, "/")
	environment := []string{"GOOS=" + system, "GOARCH=" + architecture, "CGO_ENABLED=0"}
	out, err := run(folder, environment, "list", "-deps", "-f",
		`{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}`, ".")
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		if parts := strings.SplitN(strings.TrimSpace(line), " ", 3); len(parts) == 3 {
			versions[parts[0]], folders[parts[0]] = parts[1], parts[2]
		}
	}
	return nil
}

// run runs the go command in a folder.
func run(folder string, environment []string, args ...string) (string, error) {
	command := exec.Command("go", args...)
	command.Dir, command.Stderr = folder, os.Stderr
	// The flags of the calling process are about another module.
	command.Env = append(append(os.Environ(), "GOFLAGS="), environment...)
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

var (
	licenceFile = regexp.MustCompile(`^(?i)(licen[cs]e|copying|unlicense)(\.(txt|md))?$`)
	noticeFile  = regexp.MustCompile(`^(?i)notice(\.(txt|md))?$`)
)

// read reads the licences of a module in its folder.
func (m *module) read(folder string, words *classifier.Classifier) error {
	m.texts, m.notices = map[string]string{}, map[string]string{}
	files, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, f := range files {
		into := m.texts
		switch {
		case noticeFile.MatchString(f.Name()):
			into = m.notices
		case !licenceFile.MatchString(f.Name()):
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			return err
		}
		into[f.Name()] = strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))
	}
	return m.classify(words)
}

// classify returns the licences of the texts.
func (m *module) classify(words *classifier.Classifier) error {
	if len(m.texts) == 0 {
		return errors.New("it has no file with a licence")
	}
	found := map[string]bool{}
	for _, text := range m.texts {
		for _, match := range words.Match([]byte(text)).Matches {
			// A header is the short form that names a licence.
			if match.MatchType == "License" || match.MatchType == "Header" {
				found[match.Name] = true
			}
		}
	}
	if known := readByPeople[m.path]; known != "" {
		m.licences = []string{known}
		return nil
	}
	m.licences = slices.Sorted(maps.Keys(found))
	if len(m.licences) == 0 {
		return errors.New("its licence is not known: read it, and add it to readByPeople")
	}
	for _, name := range m.licences {
		if !slices.Contains(allowed, name) {
			return fmt.Errorf("its licence %s is not one of %s", name, strings.Join(allowed, ", "))
		}
	}
	return nil
}
