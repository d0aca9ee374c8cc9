package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// Maximum number of names that one package exports, and of methods of one type.
const maxNames, maxMethods = 60, 40

// ceilings are how many lines of Go, tests aside, each part may have, with all folders below it
// that are no part themselves. A commit that raises one reports why in its message.
var ceilings = map[string]int{
	"cli": 8010, "server": 2755, "web": 2600, "scheduler": 1150, "config": 1350, "access": 730, "telemetry": 510, "internal": 510,
	"service": 1650, "service/run": 5060, "service/schedule": 600, "service/job": 800, "service/bulk": 1350,
	"service/status": 1150, "service/lfk": 4900, "service/lfk/admin": 2700, "service/lfk/orphans": 1020, "service/gitlab": 4700,
	"repo": 600, "repo/internal": 2670, "repo/dberr": 400, "repo/fencing": 350, "repo/spans": 560, "repo/reasons": 100,
	"repo/catalog": 1460, "repo/rowset": 950, "repo/control": 2050, "repo/jobqueue": 913, "repo/protection": 830,
	"repo/lfk": 3100, "repo/lfk/capture": 400, "repo/lfk/admin": 3520, "repo/lfk/orphans": 350, "repo/gitlab": 4520,
}

// TestLayout: no package has more names and no type more methods than a reader can keep apart, and no part grows by itself.
func TestLayout_NoPackageTypeOrPartGrowsBeyondItsCeiling(t *testing.T) {
	lines, names, methods := map[string]int{}, map[string]int{}, map[string]int{}
	assert.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(path, "gen") || strings.Contains(path, "testdata") || strings.Contains(path, "servicetest") ||
			!strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || partOf(path) == "" {
			return err
		}
		fset := token.NewFileSet()
		file := assert.Must(parser.ParseFile(fset, path, nil, 0))(t)
		lines[partOf(path)] += fset.Position(file.FileEnd).Line - 1
		dir := filepath.Dir(path)
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					methods[dir+"."+receiver(d.Recv.List[0].Type)]++
				} else {
					count(names, dir, d.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						count(names, dir, s.Name)
					case *ast.ValueSpec:
						count(names, dir, s.Names...)
					}
				}
			}
		}
		return nil
	}))
	for part, ceiling := range ceilings {
		assert.That(t, lines[part] > 0 && lines[part] <= ceiling, "%s has %d lines, at most %d are allowed", part, lines[part], ceiling)
	}
	for dir, n := range names {
		assert.That(t, n <= maxNames, "%s exports %d names, at most %d are allowed", dir, n, maxNames)
	}
	for name, n := range methods {
		assert.That(t, n <= maxMethods, "%s has %d methods, at most %d are allowed", name, n, maxMethods)
	}
}

// partOf is the part that a file belongs to, "" if it is no production code.
func partOf(path string) string {
	for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
		if _, found := ceilings[dir]; found {
			return dir
		}
	}
	return ""
}

func count(names map[string]int, dir string, all ...*ast.Ident) {
	for _, name := range all {
		if name.IsExported() {
			names[dir]++
		}
	}
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
