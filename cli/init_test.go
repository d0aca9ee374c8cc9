package cli_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// gitlabsWords are what a database that is not GitLab's should never be told of.
var gitlabsWords = regexp.MustCompile(`(?i)gitlab|ghost|placeholder|adjourned|inactive_token|project|\busers?\b|\bgroups?\b|protect|\bjobs?\b|river`)

// wantNoGitLab fails the test for each line of a text that speaks of GitLab's things.
func wantNoGitLab(t *testing.T, what, text string) {
	t.Helper()
	assert.That(t, strings.TrimSpace(text) != "", "%s: nothing", what)
	for line := range strings.Lines(text) {
		assert.Equal(t, gitlabsWords.FindString(line), "", "speaks of", what, line)
	}
}

// shop is an empty database with orders and their items.
func shop(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	url = databases.Clone(t, devdb.Template{Name: "bare"})
	conn = servicetest.Connect(t, url)
	execute(t, conn, `CREATE TABLE orders (id bigserial PRIMARY KEY, customer text);
		CREATE TABLE order_items (id bigserial PRIMARY KEY, order_id bigint);
		CREATE INDEX ON order_items (order_id);
		INSERT INTO orders (customer) SELECT 'c' || i FROM generate_series(1, 3) i;
		INSERT INTO order_items (order_id) SELECT i % 3 + 1 FROM generate_series(1, 9) i`)
	return url, conn
}

func column(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	rows, err := conn.Query(context.Background(), sql)
	assert.NoError(t, err)
	return strings.Join(assert.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(t), "\n")
}

func pageOf(t *testing.T, url string) string {
	t.Helper()
	answer, err := http.Get(url)
	assert.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	defer http.DefaultClient.CloseIdleConnections()
	return string(assert.Must(io.ReadAll(answer.Body))(t))
}

func TestInit_FromAnEmptyDatabaseToCleanedChildrenWithoutAWordOfGitLab(t *testing.T) {
	sh := alone(t)
	sh.set("CARETAKER_USE", "")
	url, conn := shop(t)
	sh.set("CARETAKER_DATABASES_MAIN_URL", url)
	for _, command := range []string{"migrate", "serve", "lfk lint"} {
		sh.want(1, command, "`use` is not set, and the database main has no GitLab tables: add the line `use: loose_foreign_keys`")
	}
	delete(sh.variables, "CARETAKER_DATABASES_MAIN_URL")
	dir := t.TempDir()
	file, definitions := filepath.Join(dir, "caretaker.yml"), filepath.Join(dir, "loose_foreign_keys.yml")
	with := " --config " + file
	wantNoGitLab(t, "init", sh.want(0, "init --url "+url+" --listen 127.0.0.1:0 --web-listen 127.0.0.1:0"+with,
		"(use: loose_foreign_keys)", "caretaker migrate --config "+file))
	wantNoGitLab(t, "migrate", sh.want(0, "migrate"+with))
	sh.want(0, "lfk install"+with, "main: installed")
	sh.want(0, "lfk track orders"+with, "orders_loose_fk_trigger")
	rules := "order_items: [{table: orders, column: order_id, on_delete: async_delete}]"
	assert.NoError(t, os.WriteFile(definitions, []byte(rules), 0o600))
	sh.want(0, "lfk lint"+with, "0 errors")
	r := sh.serving("serve", "--config", file)
	execute(t, conn, `DELETE FROM orders WHERE id = 1`)
	r.want(0, "run "+worker+" --dry-run"+with, "order_items.order_id")
	r.want(0, "run "+worker+with, "3 rows deleted")
	assert.Equal(t, column(t, conn, `SELECT count(*)::text FROM order_items WHERE order_id = 1`), "0", "children are left")
	wantNoGitLab(t, "the schemas", column(t, conn, `SELECT nspname::text FROM pg_namespace`))
	wantNoGitLab(t, "maintenance", column(t, conn, `SELECT relname::text FROM pg_class
		WHERE relnamespace = 'maintenance'::regnamespace`))
	wantNoGitLab(t, "status", r.want(0, "status"+with, worker))
	wantNoGitLab(t, "leases", r.want(0, "leases"+with, worker))
	wantNoGitLab(t, "help", sh.want(0, "--help"+with, "Loose foreign keys"))
	wantNoGitLab(t, "help of run", sh.want(0, "help run"+with))
	wantNoGitLab(t, "grants", sh.want(0, "doctor --grants"+with, "ON public.order_items"))
	wantNoGitLab(t, "the page", pageOf(t, "http://"+r.log.field(t, "serving", "web_listen")+"/"))
	var ours strings.Builder
	for line := range strings.Lines(pageOf(t, "http://"+r.log.field(t, "serving", "metrics_listen")+"/metrics")) {
		if strings.Contains(line, "maintenance_") {
			ours.WriteString(line)
		}
	}
	wantNoGitLab(t, "metrics", ours.String())
	for _, command := range []string{"jobs", "protected", "plan user 42"} {
		r.want(3, command+with, "caretaker: ", " not available with `use: loose_foreign_keys`")
	}
	r.want(2, "run ghost_user_migration"+with, "use: gitlab")
	sh.want(0, "doctor"+with)
	assert.Lacks(t, r.log.String(), `"level":"ERROR"`)
	// Existing files stay, and the other use adds missing ones.
	sh.set("CARETAKER_USE", "gitlab")
	sh.want(0, "migrate"+with, "main/00010_jobs_and_protections.sql", "queue/001")
	sh.want(0, "doctor"+with, "the database has no GitLab tables", "set `use: loose_foreign_keys`")
}

func TestDoctor_GrantsOfChildrenOfOtherSchemasSufficeAndNoneIsNamed(t *testing.T) {
	sh := newShell(t)
	sh.set("CARETAKER_USE", "loose_foreign_keys")
	url, conn := shop(t)
	dir := t.TempDir()
	with := " --config " + filepath.Join(dir, "caretaker.yml")
	role := fmt.Sprintf("role_%d", conn.PgConn().PID())
	execute(t, conn, "CREATE ROLE "+role+" LOGIN PASSWORD 'x'")
	t.Cleanup(func() { execute(t, conn, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	asRole := conn.Config().ConnString() + "&options=-c%20role%3D" + role
	sh.set("CARETAKER_DATABASES_MAIN_URL", asRole)
	sh.want(1, "migrate", "42501", "grant CREATE on the database to the role of databases.main.url")
	delete(sh.variables, "CARETAKER_DATABASES_MAIN_URL")
	sh.want(0, "init --url "+url+" --listen 127.0.0.1:0 --web-listen 127.0.0.1:0"+with)
	sh.want(0, "migrate"+with)
	sh.want(0, "lfk install"+with)
	sh.want(0, "lfk track orders"+with)
	execute(t, conn, `CREATE SCHEMA sales; CREATE TABLE sales."Lines.1" (id bigserial PRIMARY KEY, order_id bigint);
		CREATE INDEX ON sales."Lines.1" (order_id); INSERT INTO sales."Lines.1" (order_id) VALUES (1), (2);
		CREATE TABLE sales.notes (order_id bigint); CREATE INDEX ON sales.notes (order_id);
		INSERT INTO sales.notes VALUES (1); REVOKE ALL ON SCHEMA public FROM public`)
	rules := `'sales."Lines.1"': [{table: orders, column: order_id, on_delete: async_delete}]` + "\n" +
		"sales.notes: [{table: public.orders, column: order_id, on_delete: async_nullify}]\n"
	assert.NoError(t, os.WriteFile(filepath.Join(dir, "loose_foreign_keys.yml"), []byte(rules), 0o600))
	script := sh.want(0, "doctor --grants --role "+role+with, "GRANT USAGE ON SCHEMA sales TO "+role+";",
		`GRANT SELECT, UPDATE, DELETE ON sales."Lines.1" TO `, "GRANT SELECT, UPDATE ON sales.notes TO ")
	execute(t, conn, script+"GRANT USAGE ON SCHEMA public TO "+role)
	execute(t, conn, "REVOKE UPDATE ON sales.notes FROM "+role)
	sh.set("CARETAKER_DATABASES_MAIN_URL", asRole)
	sh.want(1, "doctor"+with, "is missing UPDATE on sales.notes")
	execute(t, conn, "GRANT UPDATE ON sales.notes TO "+role)
	sh.want(0, "doctor"+with, "the queue belongs to the role", "0 errors, 1 warning")
	r := sh.serving("serve", "--config", filepath.Join(dir, "caretaker.yml"))
	execute(t, conn, `DELETE FROM orders WHERE id = 1`)
	r.want(0, "run "+worker+with, "1 row deleted", "1 row updated")
}

func TestInit_OverwritesNothingAndKeepsPasswordsToItself(t *testing.T) {
	sh := newShell(t)
	sh.set("CARETAKER_USE", "")
	sh.set("CARETAKER_LISTEN", "") // it would win over --listen
	url, _ := shop(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "caretaker.yml")
	_, rest, _ := strings.Cut(url, "://")
	_, password, _ := strings.Cut(strings.Split(rest, "@")[0], ":")
	out := sh.want(0, "init --config "+file+" --url "+url, "only its owner can use this file with --config", "CARETAKER_DATABASES_MAIN_URL")
	assert.That(t, password != "" && !strings.Contains(out, password), "the password is shown: %s", out)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	sh.want(1, "init --config "+file+" --url "+url, " already exists: use --force", "--force")
	first := fileText(t, file)
	sh.want(0, "init --config "+file+" --force --use gitlab --url "+url, "use: gitlab", "kept ", "the old file is "+file+".1.bak\n",
		"warning: main has no GitLab tables: use --use loose_foreign_keys")
	assert.NoError(t, os.Chmod(file, 0o640))
	if os.Getuid() == 0 {
		assert.NoError(t, os.Chown(file, 0, 8))
	}
	sh.want(0, "init --config "+file+" --force --url "+url, "the old file is "+file+".2.bak\n",
		"To change that, move the URL to CARETAKER_DATABASES_MAIN_URL (in a package, in caretaker.env), then run `chmod 644 "+file+"`")
	assert.Equal(t, fileText(t, file+".1.bak"), first, "the backup of the first file")
	assert.Contains(t, fileText(t, file+".2.bak"), "use: gitlab")
	info := assert.Must(os.Stat(file))(t)
	assert.Equal(t, info.Mode().Perm(), 0o640)
	if is, ok := info.Sys().(*syscall.Stat_t); os.Getuid() == 0 && (!ok || is.Gid != 8) {
		t.Errorf("%+v", is)
	}
	sh.want(1, "init --config "+dir+"/two.yml --url "+url+" --database ci="+url, "databases.ci.url points to the same database as databases.main.url: remove")
	other := "init --config " + filepath.Join(dir, "other.yml")
	sh.want(2, other, "--url is required")
	sh.want(1, other+" --url postgres://x@127.0.0.1:1/x", "--url", "start PostgreSQL")
	sh.want(1, other+" --url "+url+" --listen 0.0.0.0:1", "nothing was written", "other hosts can "+
		"reach ")
	sh.want(2, other+" --url foo", "--url: is not a PostgreSQL URL")
	sh.want(2, other+" --url postgres://x@127.0.0.1:1/x --database Foo=postgres://y", "--database Foo: a database name must start with a lower-case letter")
	sh.want(2, other+" --url "+url+" --use shop", `"shop" is neither`)
	sh.want(2, other+" --url "+url+" --database ci", "NAME=URL")
	left := assert.Must(filepath.Glob(filepath.Join(dir, "*other*")))(t)
	assert.That(t, len(left) == 0, "left: %v", left)
}

func TestInit_NamesTheForeignKeysWithWhatTheirAdoptionRequires(t *testing.T) {
	sh := newShell(t)
	sh.set("CARETAKER_USE", "loose_foreign_keys")
	url, conn := shop(t)
	execute(t, conn, `ALTER TABLE order_items ADD CONSTRAINT item_order FOREIGN KEY (order_id) REFERENCES orders ON DELETE CASCADE;
		CREATE TABLE p (a int, b int, PRIMARY KEY (a, b)); CREATE TABLE c (x int, y int, FOREIGN KEY (x, y) REFERENCES p ON DELETE CASCADE); CREATE INDEX ON c (x);
		CREATE TABLE d (x int, y int, FOREIGN KEY (x, y) REFERENCES p ON DELETE CASCADE); CREATE INDEX ON d (y, x) WHERE x IS NOT NULL;
		INSERT INTO order_items (order_id) SELECT 1 FROM generate_series(1, 3000); INSERT INTO p VALUES (1, 2);
		INSERT INTO c SELECT 1, 2 FROM generate_series(1, 2000); INSERT INTO d SELECT 1, 2 FROM generate_series(1, 1000); ANALYZE`)
	file := filepath.Join(t.TempDir(), "caretaker.yml")
	with := " --config " + file
	sh.want(0, "init --url "+url+" --listen 127.0.0.1:0 --web-listen 127.0.0.1:0"+with,
		"  order_items.order_id -> orders, about 3,009 rows: caretaker lfk adopt order_items.order_id --plan"+with+"\n",
		"  c.(x, y) -> p, about 2,000 rows: create an index on c (x, y), then run caretaker lfk adopt c.x,y --plan"+with+"\n",
		"  d.(x, y) -> p, about 1,000 rows: caretaker lfk adopt d.x,y --plan"+with+"\n")
	sh.want(0, "migrate"+with)
	sh.want(0, "lfk install"+with)
	for _, adoptable := range []string{"order_items.order_id", "d.x,y"} {
		sh.want(0, "lfk adopt "+adoptable+" --plan"+with, "4. drop the foreign key")
	}
	sh.want(1, "lfk adopt c.x,y --plan"+with, "create an index on c (x, y)")
}

func TestDev_NeedsNothingElse(t *testing.T) {
	sh := newShell(t)
	dir := folder(t)
	r := sh.serving("dev", "--data-dir", dir, "--listen", "127.0.0.1:0")
	eventually(t, "dev says how to use it", &r.out, func() bool { return strings.Contains(r.out.String(), " run "+worker) })
	assert.Contains(t, r.out.String(), "grpcurl -plaintext "+r.address+" maintenance.v1.MaintenanceService/GetStatus")
	r.want(0, "status", worker)
	r.want(0, "run "+worker+" --database ci", "succeeded")

	environment := filepath.Join(dir, "env")
	content := assert.Must(os.ReadFile(environment))(t)
	t.Run("its environment is enough for serve and lfk", func(t *testing.T) {
		sh := sh.sub(t)
		for line := range strings.Lines(string(content)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			sh.set(name, value)
		}
		for _, name := range []string{"MAIN", "CI", "SEC"} {
			assert.That(t, sh.get("CARETAKER_DATABASES_"+name+"_URL") != "", "%s is missing in %s", name, content)
		}
		sh.want(0, "migrate", "main: up to date", "sec: up to date")
		sh.want(0, "lfk lint", "0 errors")
	})
	assert.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	r.log.field(t, "definitions reloaded", "")
	r.stop()
	assert.Equal(t, <-r.exit, 0, "exit", &r.log)
	if _, err := os.Stat(environment); !os.IsNotExist(err) {
		t.Errorf("the environment file is left: %v", err)
	}
}

func TestDev_RefusesAddressesAndDirectoriesOfOthers(t *testing.T) {
	sh := newShell(t)
	sh.set("CARETAKER_USE", "")
	sh.want(1, "dev --listen 0.0.0.0:0 "+
		"--data-dir "+folder(t), `listen: other hosts can reach "0.0.0.0:0"`)
	sh.want(2, "dev --listen nonsense --data-dir "+folder(t), `--listen: "nonsense" is not an address of the form`)
	sh.want(2, "help nonsense", `unknown command "nonsense"`)
	sh.want(0, "help run", "Exit codes:")
	dir := folder(t)
	file := filepath.Join(dir, "loose_foreign_keys.yml")
	assert.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	options := " --listen 127.0.0.1:0 --data-dir "
	sh.want(1, "dev"+options+dir, dir+" contains files that caretaker has not created, such as loose_foreign_keys.yml",
		"choose a new or empty directory with --data-dir")
	assert.Equal(t, string(assert.Must(os.ReadFile(file))(t)), "mine")
	files := assert.Must(os.ReadDir(dir))(t)
	assert.That(t, len(files) == 1, "there are %v", files)
	sh.want(1, "dev"+options+file, file+" is not a directory")
	// The address is taken before anything is loaded.
	taken := assert.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = taken.Close() }()
	dir = folder(t)
	sh.want(1, "dev --listen "+taken.Addr().String()+" --data-dir "+dir, "listen: ", "is in use by another process", "--listen")
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("%d files are there already, %v", len(files), err)
	}
}
