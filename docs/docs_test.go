// Package docs_test runs the commands of README.md and the pages of this folder in their order, and
// compares the shape of their output. It runs every SQL statement, and reads every configuration
// with its parser. docs/contributing/testing.md has the rules for pages.
package docs_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/access"
	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// The test program is caretaker itself where it is called by that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "caretaker" {
		os.Exit(cli.Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// demo are the names of the databases that a page without other words is tried on, with those that
// the pages give them.
var demo = map[string]string{
	"main": "gitlabhq_production", "ci": "gitlabhq_production_ci", "sec": "gitlabhq_production_sec",
}

// onEmpty marks a page that brings its own tables.
var onEmpty = regexp.MustCompile(`(?m)^<!-- tested on an empty database -->$`)

// The pages in full are run by make test-docs. Pages that are tried at the same time are on different estates.
func TestPages_DoWhatTheySay(t *testing.T) {
	programs, free := programs(t), estates(t, runtime.GOMAXPROCS(0))
	for _, page := range pages(t) {
		text, blocks := read(t, page)
		if !slices.ContainsFunc(blocks, block.runs) {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			e := <-free
			t.Cleanup(func() { free <- e })
			s := newSession(t, e, programs)
			s.tidyUp()
			if onEmpty.MatchString(text) {
				s.openEmpty()
			} else {
				s.openDemo()
			}
			for _, b := range blocks {
				if !b.noTest {
					s.try(b)
				}
			}
		})
	}
}

// estate is a cluster of its own, as pages give names to roles and databases.
type estate struct {
	databases devdb.Tests
	demo      sync.Once
	err       error
}

// estates returns clusters that start when they are used, and stop when the test ends.
func estates(t *testing.T, n int) chan *estate {
	t.Helper()
	free := make(chan *estate, n)
	for range n {
		e := &estate{databases: devdb.Tests{Settings: map[string]string{"cluster_name": "pages"}}}
		t.Cleanup(func() {
			if err := e.databases.Stop(); err != nil {
				t.Error(err)
			}
		})
		free <- e
	}
	return free
}

// programs are a folder with caretaker and grpcurl.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	self := assert.Must(os.Executable())(t)
	assert.NoError(t, os.Symlink(self, filepath.Join(dir, "caretaker")))
	build := exec.Command("go", "build", "-modfile=tools/grpcurl/go.mod", "-o",
		filepath.Join(dir, "grpcurl"), "github.com/fullstorydev/grpcurl/cmd/grpcurl")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build grpcurl: %v: %s", err, out)
	}
	return dir
}

// try does what a block reports.
func (s *session) try(b block) {
	s.t.Helper()
	switch b.kind {
	case "sh", "console":
		for _, one := range b.steps() {
			s.step(b, one)
		}
	case "sql":
		script := strings.ReplaceAll(strings.Join(b.lines, "\n"), "'…'", "NULL")
		file := filepath.Join(s.root, "statements.sql")
		assert.NoError(s.t, os.WriteFile(file, []byte(s.here(script)), 0o600))
		command := "psql -X -q -v ON_ERROR_STOP=1 -f " + file
		if b.name != "" {
			command += " -d " + s.database(b.name)
		}
		out, code := s.run(command)
		assert.Require(s.t, code == 0, "%s: %s", b, out)
	case "yaml":
		if b.name != "" {
			s.yaml(b)
		}
	}
}

// database is the name on our cluster of a database of the page.
func (s *session) database(name string) string {
	if inDemo := demo[name]; inDemo != "" && s.urls[inDemo] != "" {
		name = inDemo
	}
	return s.databaseHere("postgres://db/" + name)
}

// mayFail are words of outputs of commands that do not succeed.
var mayFail = regexp.MustCompile(`error|ERROR|caretaker: |failed|missing|refused|skipped|needs`)

func (s *session) step(b block, one step) {
	s.t.Helper()
	run, command := s.run, one.command
	switch {
	case goesOn(command):
		run = s.start
	case b.kind == "sh":
		command = "set -e\n" + command + "\nset +e\n"
	}
	out, code := run(s.here(command))
	assert.Require(s.t, code == 0 || mayFail.MatchString(one.shown),
		"%s:%d: exit %d of\n%s\n%s", b.page, one.line, code, one.command, out)
	if one.shown == "" {
		return
	}
	why := compare(one.shown, out)
	assert.That(s.t, why == "", "%s:%d: %s\n%s\nprinted\n%s", b.page, one.line, why, one.command, out)
}

// yaml writes the file that a block shows and reads it with the parser of such files.
func (s *session) yaml(b block) {
	s.t.Helper()
	file := filepath.Join(s.root, "home", "me", b.name)
	if filepath.IsAbs(b.name) {
		file = filepath.Join(s.root, b.name)
	}
	base := filepath.Base(file)
	if base == "client.yml" {
		file = filepath.Join(s.root, "home", "me", ".config", "caretaker", base)
	}
	content := []byte(s.here(strings.Join(b.lines, "\n")) + "\n")
	assert.NoError(s.t, os.MkdirAll(filepath.Dir(file), 0o755))
	assert.NoError(s.t, os.WriteFile(file, content, 0o600))
	if err := parse(file, content); err != nil {
		s.t.Errorf("%s: %v", b, err)
	}
}

// parse has a file of YAML read by the parser of files of that name.
func parse(file string, content []byte) error {
	var v any
	if err := yaml.Unmarshal(content, &v); err != nil {
		return err
	}
	var err error
	switch base := filepath.Base(file); {
	case base == "caretaker.yml":
		_, err = config.LoadPartial(file, &service.Config{})
	case base == "tokens.yml":
		_, err = access.New(access.Config{TokensFile: file, Workers: servicetest.Workers()})
	case base == "client.yml":
		folder := filepath.Dir(filepath.Dir(file))
		_, err = config.Environment{"XDG_CONFIG_HOME=" + folder}.ReadClient("")
	case strings.HasSuffix(base, "loose_foreign_keys.yml"):
		_, err = lfk.LoadDefinitions(file)
	}
	return err
}

// demoConfiguration is the file caretaker.yml that a reader has by then.
const demoConfiguration = `databases:
  main:
    url: postgres://caretaker@db/gitlabhq_production
  ci:
    url: postgres://caretaker@db/gitlabhq_production_ci
  sec:
    url: postgres://caretaker@db/gitlabhq_production_sec
workers:
  loose_foreign_keys_cleanup:
    definitions: /opt/gitlab/embedded/service/gitlab-rails/config/gitlab_loose_foreign_keys.yml
`

// openEmpty gives the page an empty database, shop, and nothing else.
func (s *session) openEmpty() {
	s.databaseHere("postgres://db/shop")
	if out, code := s.run("export PGDATABASE=shop"); code != 0 {
		s.t.Fatal(out)
	}
}

// openDemo gives the page the demo data of "caretaker dev", its variables, and a server.
func (s *session) openDemo() {
	assert.NoError(s.t, s.estate.loadDemo(s.cluster))
	variables := ""
	for name, inPages := range demo {
		if out, code := s.run("createdb --template=docs_" + name + " " + inPages); code != 0 {
			s.t.Fatal(out)
		}
		s.urls[inPages] = s.cluster.URL(inPages)
		variables += "CARETAKER_DATABASES_" + strings.ToUpper(name) + "_URL='" + s.urls[inPages] + "'\n"
	}
	definitions := s.root + "/opt/gitlab/embedded/service/gitlab-rails/config/gitlab_loose_foreign_keys.yml"
	dev := s.root + "/var/lib/caretaker/dev"
	for _, dir := range []string{filepath.Dir(definitions), dev} {
		assert.NoError(s.t, os.MkdirAll(dir, 0o755))
	}
	variables += "CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS=" + definitions + "\n"
	for file, content := range map[string]string{
		definitions: devdb.Definitions(), dev + "/env": variables,
		s.root + "/home/me/caretaker.yml": s.here(demoConfiguration),
	} {
		assert.NoError(s.t, os.WriteFile(file, []byte(content), 0o600))
	}
	if out, code := s.run("set -a; . " + dev + "/env; set +a; export PGDATABASE=" + demo["main"]); code != 0 {
		s.t.Fatal(out)
	}
	if out, code := s.start("caretaker serve"); code != 0 {
		s.t.Fatal(out)
	}
}

// loadDemo makes, once, the databases of which each page has copies.
func (e *estate) loadDemo(cluster *devdb.Cluster) error {
	e.demo.Do(func() { e.err = makeDemo(cluster) })
	return e.err
}

func makeDemo(cluster *devdb.Cluster) error {
	ctx, urls := context.Background(), map[string]string{}
	for name := range demo {
		seed := "docs_" + name
		if err := cluster.CreateDatabase(ctx, seed); err != nil {
			return err
		}
		urls[name] = cluster.URL(seed)
		if err := devdb.LoadSchema(ctx, urls[name], name); err != nil {
			return err
		}
	}
	if err := devdb.LoadDemo(ctx, urls); err != nil {
		return err
	}
	for name, url := range urls {
		d, err := repo.Open(ctx, name, url)
		if err != nil {
			return err
		}
		_, err = scheduler.Migrate(ctx, d)
		d.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// tidyUp drops, at the end, the databases and roles that the page has made.
func (s *session) tidyUp() {
	s.t.Cleanup(func() {
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, s.cluster.URL("postgres"))
		if err != nil {
			s.t.Error(err)
			return
		}
		defer func() { _ = conn.Close(ctx) }()
		rows, _ := conn.Query(ctx, `
			SELECT format('DROP DATABASE %I WITH (FORCE)', datname) FROM pg_database
			WHERE NOT datistemplate AND datname <> 'postgres' AND datname NOT LIKE 'docs\_%'
			UNION ALL
			SELECT format('DROP ROLE %I', rolname) FROM pg_roles
			WHERE rolname NOT LIKE 'pg\_%' AND rolname <> current_user`)
		statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			s.t.Error(err)
		}
		for _, statement := range statements {
			if _, err := conn.Exec(ctx, statement); err != nil {
				s.t.Error(err)
			}
		}
	})
}
