package devdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// minVersion is the oldest PostgreSQL major version that is supported:
// partitioned tables with statement triggers behave alike from here on.
const minVersion = 14

// programs is one installation of PostgreSQL's server.
type programs struct {
	dir     string // folder of initdb and postgres
	version int    // major
}

// places are the folders that package managers use, besides PATH. Within one
// pattern the highest version comes first.
func places() []string {
	return []string{
		"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
		"/usr/pgsql-*/bin",                                   // PGDG on Red Hat
		"/usr/bin",                                           // Red Hat
		"/usr/libexec/postgresql*",                           // Alpine
		"/opt/homebrew/opt/postgresql@*/bin",                 // Homebrew, Apple silicon
		"/usr/local/opt/postgresql@*/bin",                    // Homebrew, Intel
		"/usr/local/pgsql/bin",                               // built from source
		"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",    // Homebrew on Linux
	}
}

// candidates returns every folder with initdb and postgres in it, those on
// PATH first, without repetition.
func candidates(path string, patterns []string) []string {
	var dirs []string
	add := func(dir string) {
		exe, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err != nil {
			return
		}
		dir = filepath.Dir(exe)
		if executable(exe) && executable(filepath.Join(dir, "initdb")) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range filepath.SplitList(path) {
		add(dir)
	}
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern) // the patterns are constant and well-formed
		slices.SortFunc(found, func(a, b string) int {
			return cmp.Or(cmp.Compare(numberIn(b), numberIn(a)), cmp.Compare(a, b))
		})
		for _, dir := range found {
			add(dir)
		}
	}
	return dirs
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// numberIn returns the last number in a path, the version in all patterns.
func numberIn(path string) float64 {
	all := regexp.MustCompile(`\d+(\.\d+)?`).FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.ParseFloat(all[len(all)-1], 64)
	return n
}

// majorVersion asks the server program for its version.
func majorVersion(ctx context.Context, dir string) (int, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("cannot read the version of %s/postgres: %w", dir, err)
	}
	match := regexp.MustCompile(`\(PostgreSQL\)\s+(\d+)`).FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("unknown version in the output of %s/postgres --version: %q", dir, strings.TrimSpace(string(out)))
	}
	return strconv.Atoi(string(match[1]))
}

// errNoPrograms reports that none of the usual folders has a server.
var errNoPrograms = errors.New("PostgreSQL server programs (initdb, postgres) not found")

// find returns the first usable installation: of the major version want, or,
// when want is 0, of any supported one.
func find(ctx context.Context, path string, patterns []string, want int) (programs, error) {
	var unfit []string
	for _, dir := range candidates(path, patterns) {
		version, err := majorVersion(ctx, dir)
		switch {
		case err != nil:
			unfit = append(unfit, err.Error())
		case version < minVersion, want != 0 && version != want:
			unfit = append(unfit, fmt.Sprintf("%s has version %d", dir, version))
		default:
			return programs{dir: dir, version: version}, nil
		}
	}
	if len(unfit) == 0 {
		return programs{}, errNoPrograms
	}
	need := fmt.Sprintf("version %d or later is required", minVersion)
	if want != 0 {
		need = fmt.Sprintf("the data directory requires version %d", want)
	}
	return programs{}, fmt.Errorf("%w: %s (%s)", errNoPrograms, need, strings.Join(unfit, "; "))
}

// library reports whether the server has the named loadable library.
func (p programs) library(ctx context.Context, name string) bool {
	dirs := []string{
		filepath.Join(p.dir, "../lib"), filepath.Join(p.dir, "../lib/postgresql"),
		"/usr/lib64/pgsql", "/usr/lib/pgsql", "/usr/lib/postgresql",
	}
	if out, err := exec.CommandContext(ctx, filepath.Join(p.dir, "pg_config"), "--pkglibdir").Output(); err == nil {
		dirs = []string{strings.TrimSpace(string(out))}
	}
	for _, dir := range dirs {
		for _, suffix := range []string{".so", ".dylib"} {
			if _, err := os.Stat(filepath.Join(dir, name+suffix)); err == nil {
				return true
			}
		}
	}
	return false
}
