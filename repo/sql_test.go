package repo_test

import (
	"cmp"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// placeholder is what fill replaces.
var placeholder = regexp.MustCompile(`\{[a-z_.]+\}`)

// sqlConstants are all constants of the package and of lfkadmin that are called SQL, by their names.
func sqlConstants(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	admin, err2 := filepath.Glob("lfkadmin/*.go")
	if err != nil || err2 != nil || len(files) == 0 || len(admin) == 0 {
		t.Fatalf("no files: %v, %v", err, err2)
	}
	values := map[string]ast.Expr{}
	for _, file := range append(files, admin...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed := servicetest.Must(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
		for _, declaration := range parsed.Decls {
			general, ok := declaration.(*ast.GenDecl)
			if !ok || general.Tok != token.CONST {
				continue
			}
			for _, spec := range general.Specs {
				if spec, ok := spec.(*ast.ValueSpec); ok {
					for i := range spec.Values {
						name := spec.Names[i].Name
						if _, twice := values[name]; twice && strings.HasSuffix(name, "SQL") {
							t.Errorf("%s is there twice", name)
						}
						values[name] = spec.Values[i]
					}
				}
			}
		}
	}
	constants := map[string]string{}
	for name, value := range values {
		if strings.HasSuffix(name, "SQL") {
			constants[name] = text(t, value, values)
		}
	}
	return constants
}

// text is a constant string: literals, other constants and their sums.
func text(t *testing.T, e ast.Expr, constants map[string]ast.Expr) string {
	t.Helper()
	switch e := e.(type) {
	case *ast.BasicLit:
		s := servicetest.Must(strconv.Unquote(e.Value))(t)
		return s
	case *ast.BinaryExpr:
		return text(t, e.X, constants) + text(t, e.Y, constants)
	case *ast.Ident:
		return text(t, constants[e.Name], constants)
	case *ast.SelectorExpr:
		return text(t, constants[e.Sel.Name], constants)
	}
	t.Fatalf("%T is no constant text", e)
	return ""
}

// statements are the constants as they are sent, fragments put together.
func statements(t *testing.T) map[string]string {
	t.Helper()
	constants := sqlConstants(t)
	constants["purgeAllSQL with its result"] = constants["purgeAllSQL"] + constants["purgeAllResultSQL"]
	constants["purgeAllSQL with removal"] = constants["purgeAllSQL"] + constants["purgeAllRemovalSQL"]
	constants["purgeUncountedSQL with its result"] = constants["purgeUncountedSQL"] + constants["purgeAllResultSQL"]
	constants["purgeUncountedSQL with removal"] = constants["purgeUncountedSQL"] + constants["purgeAllRemovalSQL"]
	constants["purgeSeveralSQL with its result"] = constants["purgeSeveralSQL"] + constants["purgeAllResultSQL"]
	constants["purgeSeveralSQL with removal"] = constants["purgeSeveralSQL"] + constants["purgeAllRemovalSQL"]
	for _, name := range fragments {
		if _, ok := constants[name]; !ok {
			t.Errorf("there is no constant %s any more: take it off the fragments in sql_fillings_test.go", name)
		}
	}
	whole := map[string]string{}
	for name, sql := range constants {
		if !slices.Contains(fragments, name) {
			whole[name] = filled(t, name, sql, constants)
		}
	}
	return whole
}

// filled replaces the placeholders of a statement, those of its fillings too.
func filled(t *testing.T, name, sql string, constants map[string]string) string {
	t.Helper()
	for done := false; !done && placeholder.MatchString(sql); {
		sql = placeholder.ReplaceAllStringFunc(sql, func(p string) string {
			filling, ok := fillings[name+p]
			if !ok {
				filling, ok = fillings[p]
			}
			if !ok {
				t.Errorf("%s: what is %s? Add it to the fillings in sql_fillings_test.go", name, p)
				done = true
			}
			return cmp.Or(constants[filling], filling)
		})
	}
	return sql
}

func TestSQL_EveryStatementFitsTheReferenceSchema(t *testing.T) {
	t.Parallel()
	url := databases.Clone(t, servicetest.Migrated("main"))
	conn := connect(t, url)
	all := statements(t)
	for name, sql := range all {
		for i, single := range split(name, sql) {
			if _, err := conn.PgConn().Prepare(context.Background(), "", single, nil); err != nil {
				t.Errorf("%s, statement %d: %v", name, i, err)
			}
		}
	}
	if len(all) < 60 {
		t.Errorf("only %d statements found", len(all))
	}
}

// split cuts the one constant that is several statements.
func split(name, sql string) []string {
	if name == "createQueueSQL" {
		return slices.Collect(strings.SplitSeq(sql, ";"))
	}
	return []string{sql}
}
