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

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// placeholder is what fill replaces.
var placeholder = regexp.MustCompile(`\{[a-z_.]+\}`)

// sqlConstants are all constants of repo and the packages below it that are called SQL, by their names.
func sqlConstants(t *testing.T) map[string]string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"*.go", "*/*.go", "*/*/*.go"} {
		files = append(files, assert.Must(filepath.Glob(pattern))(t)...)
	}
	values := map[string]ast.Expr{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed := assert.Must(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
		for _, declaration := range parsed.Decls {
			general, ok := declaration.(*ast.GenDecl)
			if !ok || general.Tok != token.CONST {
				continue
			}
			for _, spec := range general.Specs {
				if spec, ok := spec.(*ast.ValueSpec); ok {
					for i := range spec.Values {
						name := spec.Names[i].Name
						_, twice := values[name]
						assert.That(t, !twice || !strings.HasSuffix(name, "SQL"), "%s is given twice", name)
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
		return assert.Must(strconv.Unquote(e.Value))(t)
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
	constants["purgeUncountedSQL with its result"] = constants["purgeUncountedSQL"] + strings.ReplaceAll(constants["purgeAllResultSQL"], "{noted}", "{tallied}")
	constants["purgeUncountedSQL with removal"] = constants["purgeUncountedSQL"] + strings.ReplaceAll(constants["purgeAllRemovalSQL"], "{noted}", "{tallied}")
	constants["purgeSeveralSQL with its result"] = constants["purgeSeveralSQL"] + constants["purgeAllResultSQL"]
	constants["purgeSeveralSQL with removal"] = constants["purgeSeveralSQL"] + constants["purgeAllRemovalSQL"]
	for _, name := range fragments {
		_, ok := constants[name]
		assert.That(t, ok, "there is no constant %s any more: take it off the fragments in sql_fillings_test.go", name)
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

// split cuts the one constant that is several statements.
func split(name, sql string) []string {
	if name == "createQueueSQL" {
		return slices.Collect(strings.SplitSeq(sql, ";"))
	}
	return []string{sql}
}

// prepared are the types of all statements' parameters in a database, by the statements' names. Each fits its schema.
func prepared(t *testing.T, conn *pgx.Conn) map[string][]uint32 {
	t.Helper()
	types := map[string][]uint32{}
	for name, sql := range statements(t) {
		for i, single := range split(name, sql) {
			s, err := conn.PgConn().Prepare(context.Background(), "", single, nil)
			if err != nil {
				t.Errorf("%s, statement %d: %v", name, i, err)
				continue
			}
			types[name] = append(types[name], s.ParamOIDs...)
		}
	}
	return types
}

// A parameter takes the type of the column that it is compared with: an id of 64 bits would not go into one of 32.
func TestSQL_EveryStatementFitsTheReferenceSchemaWithIDsOfAnyWidth(t *testing.T) {
	conn := servicetest.Connect(servicetest.Parallel(t), databases.Clone(t, servicetest.Migrated("main")))
	want := prepared(t, conn)
	assert.That(t, len(want) >= 60, "only %d statements found", len(want))
	for _, narrow := range []string{
		"%", "id", "user_id", "group_id", "namespace_id", "parent_id", "owner_id", "source_id", "organization_id", "member_namespace_id",
		"project_namespace_id", "shared_group_id", "shared_with_group_id", "placeholder_user_id", "initiator_user_id",
	} {
		t.Run(narrow, func(t *testing.T) {
			assert.Must(conn.Exec(t.Context(), "BEGIN; "+devdb.NarrowKeys(narrow)))(t)
			got := prepared(t, conn)
			assert.Must(conn.Exec(t.Context(), "ROLLBACK"))(t)
			for name, types := range want {
				assert.That(t, slices.Equal(got[name], types),
					"the parameters of %s are of the types %v, want %v as with bigint: cast them", name, got[name], types)
			}
		})
	}
}

func TestSweep_KeysTooWideForTheColumnMatchNothing(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	for _, kind := range []string{"smallint", "integer", "bigint"} {
		b.exec(`DROP TABLE IF EXISTS t; CREATE TABLE t (id bigserial PRIMARY KEY, owner ` + kind + `); INSERT INTO t (owner) VALUES (1), (2), (3)`)
		r, _ := rowset.RowsOf(b.catalog(map[string][]string{"t": {"owner"}}), "t", "owner", "1", "2", "3000000000")
		owner, _ := b.catalog(map[string][]string{"t": {"owner"}}).Table("t").Column("owner")
		ctx := context.Background()
		has := assert.Must(b.Sweeps.Any(ctx, []rowset.Rows{r}, generous))(t)
		assert.That(t, has[0], "%s: any %v", kind, has)
		places := assert.Must(r.Refer(ctx, generous))(t)
		assert.That(t, slices.Equal(places, []int{0, 1}), "%s: refer %v", kind, places)
		taken, err := r.Take(ctx, []catalog.Column{owner}, [][]string{{"2", "3000000000"}}, rowset.Batch{Rows: 9, Permit: unguarded()})
		assert.That(t, err == nil && slices.Equal(taken[0], []string{"1"}), "%s: take %v, %v", kind, taken, err)
		got := b.swept(r, rowset.Change{Delete: true}, rowset.Batch{Rows: 9})
		assert.That(t, got.Changed == 2, "%s: swept %+v", kind, got)
	}
}
