package cli_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	_ "time/tzdata" // hosts of tests may have no zones

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestServe_ServesUntilItIsStopped(t *testing.T) {
	sh := alone(t)
	sh.prepared()
	sh.defined(oneKey)
	r := sh.serving()
	assert.Contains(t, r.scrape(t), "maintenance_backlog_pending")
	r.stop()
	assert.Equal(t, <-r.exit, 0, "exit", &r.log)
	r.log.field(t, "stopped", "")
}

func TestServe_StopsRunsInOrder(t *testing.T) {
	sh, sql := newPrepared(t)
	sh.defined(oneKey)
	execute(t, sql, slow)
	r := sh.serving()
	ran := make(chan int, 1)
	go func() {
		code, _, _ := sh.caretaker("run", worker, "--address", r.address)
		ran <- code
	}()
	id := r.log.field(t, "run started", "run_id")
	r.stop()
	assert.Equal(t, <-r.exit, 0, "exit", &r.log)
	assert.Equal(t, <-ran, 1, "the client of a stopped run: exit")
	var state, free string
	row := sql.QueryRow(context.Background(), `SELECT state, (SELECT bool_and(expires_at <= now())::text FROM maintenance.leases)
		FROM maintenance.runs WHERE id = $1::text::uuid`, id)
	if err := row.Scan(&state, &free); err != nil || state != "cancelled" || free != "true" {
		t.Errorf("got %v, the run %s, leases free: %s", err, state, free)
	}
}

func TestServe_RefusesWhatCannotWork(t *testing.T) {
	sh := newShell(t)
	sh.want(1, "serve", "databases.main.url is required", "CARETAKER_DATABASES_MAIN_URL")
	sh.set("CARETAKER_DATABASES_MAIN_URL", databases.Clone(t, devdb.Template{Name: "bare"}))
	sh.set("CARETAKER_METRICS_LISTEN", "")
	sh.want(1, "serve", "missing or outdated in main: run `caretaker migrate`")
	sh.migrate()
	sh.want(0, "migrate", "main: up to date")

	file := sh.defined("c:\n  - {table: p, column: p_id, on_delete: async_drop}\n")
	sh.want(1, "serve", file+":2: c[0].on_delete", "async_nullify")
	sh.defined(oneKey)

	t.Run("a schedule", func(t *testing.T) {
		sh := sh.sub(t)
		sh.set("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_SCHEDULE", "every minute")
		sh.set("CARETAKER_DATABASES_MAIN_URL", "postgres://u@127.0.0.1:1/d")
		sh.want(1, "serve", `CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_SCHEDULE: "every minute" is not a cron`, "five fields")
	})
	t.Run("an address in use", func(t *testing.T) {
		sh := sh.sub(t)
		taken := assert.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer func() { _ = taken.Close() }()
		sh.set("CARETAKER_LISTEN", taken.Addr().String())
		_, _, said := sh.caretaker("serve")
		assert.Contains(t, said, "listen: ", taken.Addr().String(), "is in use by another "+
			"process", "set listen (CARETAKER_LISTEN) to")
		assert.Lacks(t, said, "--listen")
		sh.set("CARETAKER_LISTEN", "127.0.0.1:0")
		sh.set("CARETAKER_METRICS_LISTEN", taken.Addr().String())
		sh.want(1, "serve", "metrics_listen: ", taken.Addr().String(), "set metrics_listen (CARETAKER_METRICS_LISTEN)", "or to an empty value to disable the listener")
		metrics := assert.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer func() { _ = metrics.Close() }()
		sh.set("CARETAKER_LISTEN", taken.Addr().String())
		sh.set("CARETAKER_METRICS_LISTEN", metrics.Addr().String())
		sh.want(1, "serve", "caretaker: listen: "+taken.Addr().String(), "with a free port\nmetrics_listen: "+metrics.Addr().String())
	})
	t.Run("a database that is not there", func(t *testing.T) {
		sh := sh.sub(t)
		there := assert.Must(url.Parse(sh.get("CARETAKER_DATABASES_MAIN_URL")))(t)
		there.Path = "/nowhere"
		sh.set("CARETAKER_DATABASES_MAIN_URL", there.String())
		for _, command := range []string{"serve", "migrate"} {
			sh.want(1, command, "databases.main.url (CARETAKER_DATABASES_MAIN_URL): database not found", "nowhere")
		}
		there.User = url.UserPassword("nobody", "secret")
		sh.set("CARETAKER_DATABASES_MAIN_URL", there.String())
		assert.Lacks(t, sh.want(1, "serve", "databases.main.url (CARETAKER_DATABASES_MAIN_URL): authentication failed: check the user and password"), "secret")
	})
}

func TestServe_RefusesFilesAndURLsThatCannotWork(t *testing.T) {
	sh := newShell(t)
	sh.configured("main")
	sh.migrate()
	sh.defined(oneKey)
	t.Run("a certificate", func(t *testing.T) {
		sh := sh.sub(t)
		sh.set("CARETAKER_TLS_CERT_FILE", "none.pem")
		sh.set("CARETAKER_TLS_KEY_FILE", "none.pem")
		sh.set("CARETAKER_AUTH_TOKEN_FILE", "/no/token")
		sh.set("CARETAKER_WEB_TRACE_URL", "nowhere")
		sh.set("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", "/no/definitions.yml")
		sh.want(1, "serve", "tls.cert_file", "auth.token_file: ", "CARETAKER_WEB_TRACE_URL: ",
			"cannot read /no/definitions.yml (no such file or directory): correct "+
				"workers.loose_foreign_keys_cleanup.definitions")
	})
	t.Run("two names of one database", func(t *testing.T) {
		sh := sh.sub(t)
		sh.set("CARETAKER_DATABASES_CI_URL", sh.get("CARETAKER_DATABASES_MAIN_URL")+"&application_name=second")
		for _, command := range []string{"serve", "migrate", "lfk lint", "lfk install", "lfk dead --database main"} {
			sh.want(1, command, "databases.ci.url points to the same database as databases.main.url: remove databases.ci.url")
		}
	})
	t.Run("a file of tokens", func(t *testing.T) {
		sh := sh.sub(t)
		sh.set("CARETAKER_AUTH_TOKENS_FILE", saved(t, "tokens.yml", "- {name: a, role: boss}"))
		sh.want(1, "serve", `auth.tokens_file: `, `"boss" is not a role: use viewer, operator or admin`)
		sh.set("CARETAKER_AUTH_TOKENS_FILE", "/nowhere/tokens.yml")
		sh.want(1, "serve", "auth.tokens_file: open /nowhere/tokens.yml")
	})
	t.Run("a configuration, by file and line", func(t *testing.T) {
		sh := sh.sub(t)
		sh.set("CARETAKER_DATABASES_MAIN_URL", "postgres://u@127.0.0.1:1/d")
		file := filepath.Join(t.TempDir(), "c.yml")
		for content, mistake := range map[string]string{
			"listem: 127.0.0.1:0": ":1: listem: unknown key (did you mean listen?)",
			"workers:\n  ghost_user_migration:\n    schedule: '0 0 31 2 *'": `:3: workers.ghost_user_migration.schedule: "0 0 31 2 *" does not fire`,
		} {
			assert.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			sh.want(1, "serve --config "+file, file+mistake)
		}
	})
	t.Run("a URL, without its password", func(t *testing.T) {
		sh := sh.sub(t)
		sh.set("CARETAKER_DATABASES_CI_URL", "postgres://u:secret@h:port/d")
		assert.Lacks(t, sh.want(1, "serve", "CARETAKER_DATABASES_CI_URL: is not a PostgreSQL URL (not shown"), "secret")
	})
}

// forward lets an address lead to another one from now on.
func forward(t *testing.T, from, to string) {
	t.Helper()
	listener := assert.Must(net.Listen("tcp", from))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
			go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
		}
	}()
}

func TestServe_StartsBeforeItsDatabase(t *testing.T) {
	sh, _ := newPrepared(t)
	sh.defined(oneKey)
	there := assert.Must(url.Parse(sh.get("CARETAKER_DATABASES_MAIN_URL")))(t)
	home := there.Host
	closed := assert.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	there.Host = closed.Addr().String()
	_ = closed.Close()
	sh.set("CARETAKER_DATABASES_MAIN_URL", there.String())
	r := sh.serving()
	r.log.field(t, "database unreachable at startup, retrying", "database")
	r.want(0, "status", "failing", "not known       not known           -    -         -", "class "+
		"UNREACHABLE: check the database", "backlog of main unknown")
	r.want(1, "run "+worker, "cannot be reached")
	forward(t, there.Host, home)
	r.log.field(t, "database usable", "database")
	r.want(0, "run "+worker, "succeeded")
	r.want(0, "status", "scheduler off")
}

func TestMigrate_ReportsWhatItApplied(t *testing.T) {
	sh := newShell(t)
	sh.configured("main")
	sh.configured("ci")
	out := document(t, sh.want(0, "migrate --output json"))
	list, _ := out["databases"].([]any)
	assert.Require(t, len(list) == 2, "got %v", out)
	for _, entry := range list {
		if applied, _ := entry.(map[string]any)["applied"].([]any); len(applied) == 0 {
			t.Errorf("got %v", entry)
		}
	}
	sh.set("CARETAKER_DATABASES_SEC_URL", "postgres://u:secret@127.0.0.1:1/d")
	assert.Lacks(t, sh.want(1, "migrate", "migrate on sec"), "secret")
}

func TestServe_AReplicaThatCannotBeReadIsAWarning(t *testing.T) {
	sh, sql := newPrepared(t)
	for url, words := range map[string][]string{
		"postgres://nobody@127.0.0.1:1/none?sslmode=disable": {"replica unusable at startup, reading from the primary", "unreachable"},
		"host=x port=many":                   {"replica rejected, reading from the primary", "databases.main.replica_url"},
		sql.Config().ConnString():            {"replica unusable at startup", "the server is not a standby"},
		databases.Cluster(t).URL("postgres"): {"replica unusable at startup", "the server is not a standby"},
	} {
		sh.set("CARETAKER_DATABASES_MAIN_REPLICA_URL", url)
		r := sh.serving()
		r.want(0, "status", worker)
		r.stop()
		assert.Equal(t, <-r.exit, 0, "exit", &r.log)
		assert.Contains(t, r.log.String(), words...)
	}
}

func TestFault_Serve_WarnsOfAPoolerWithoutItsSetting(t *testing.T) {
	sh, sql := newPrepared(t)
	p := assert.Must(databases.Cluster(t).Pooler(t.Context(), 3))(t)
	defer func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for url, warns := range map[string]bool{p.URL(sql.Config().Database): false, p.PlainURL(sql.Config().Database): true} {
		sh.set("CARETAKER_DATABASES_MAIN_URL", url)
		r := sh.serving()
		r.stop()
		<-r.exit
		assert.Equal(t, strings.Contains(r.log.String(), "add default_query_exec_mode=exec to databases.main.url"), warns, "warned", url, &r.log)
	}
}

// inIndia is the environment of a process on a host whose zone is not UTC. OpenTelemetry has something to complain of.
func inIndia(t *testing.T, format string) []string {
	t.Helper()
	return []string{
		"TZ=Asia/Kolkata", "CARETAKER_LISTEN=127.0.0.1:0", "CARETAKER_METRICS_LISTEN=", "CARETAKER_LOG_FORMAT=" + format,
		"OTEL_TRACES_EXPORTER=otlp", "OTEL_METRICS_EXPORTER=none", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1",
		"OTEL_EXPORTER_OTLP_TIMEOUT=soon", "OTEL_EXPORTER_OTLP_HEADERS=secret-without-a-value",
	}
}

func TestLog_IsInUTCAndInOneFormatWhereverTheHostIsAndWhoeverSpeaks(t *testing.T) {
	sh := newShell(t)
	for _, format := range []string{"json", "text"} {
		t.Run(format, func(t *testing.T) {
			sh := sh.sub(t)
			sql := sh.prepared()
			sh.defined(oneKey)
			execute(t, sql, `INSERT INTO maintenance.schedules (worker, cron, accounted_until)
				VALUES ('`+worker+`', '* * * * *', now() - interval '10 minutes')`)
			server, log := sh.process("serve", inIndia(t, format)...)
			address := ""
			eventually(t, "the server serves", log, func() bool {
				_, rest, serving := strings.Cut(log.String(), "listen")
				if serving {
					rest = strings.TrimLeft(rest, `":=`)
					address = rest[:strings.IndexAny(rest, "\" ")]
				}
				return serving
			})
			commands := []string{"run " + worker}
			if format == "json" { // the format is that of the log alone
				commands = append(commands, "runs", "fires", "leases", "jobs", "pause --all --reason r --for 1h", "status")
			}
			for _, command := range commands {
				asked, out := sh.process(command+" --address "+address, "TZ=Asia/Kolkata")
				_ = asked.Wait()
				wantUTC(t, command, out.String())
			}
			eventually(t, "fires are missed", log, func() bool { return strings.Contains(log.String(), "scheduled runs missed") })
			signal(t, server, syscall.SIGTERM)
			_ = server.Wait()
			wantUTC(t, "the log", log.String())
			assert.That(t, strings.Contains(log.String(), "OpenTelemetry warning") &&
				!strings.Contains(log.String(), "secret"), "what OpenTelemetry says: %s", log)
			for line := range strings.Lines(log.String()) {
				if isJSON := json.Valid([]byte(line)); isJSON != (format == "json") || format == "text" && !strings.HasPrefix(line, "time=") {
					t.Errorf("a line of another format: %s", line)
				}
			}
		})
	}
}

func wantUTC(t *testing.T, what, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		assert.That(t, !strings.Contains(line, "+05:30") && !strings.Contains(line, "+0530") &&
			!strings.Contains(line, "IST"), "%s has a time of the host's zone: %s", what, line)
	}
}

func TestServe_AnEndpointOfOpenTelemetryThatIsNoneIsAMistake(t *testing.T) {
	sh, _ := newPrepared(t)
	server, out := sh.process("serve", "OTEL_EXPORTER_OTLP_ENDPOINT=:::", "CARETAKER_LISTEN=127.0.0.1:0", "CARETAKER_METRICS_LISTEN=")
	if err := server.Wait(); err == nil || server.ProcessState.ExitCode() != 1 {
		t.Errorf("got %v, exit %d", err, server.ProcessState.ExitCode())
	}
	if !strings.Contains(out.String(), "caretaker: OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL") || strings.Contains(out.String(), "parse") {
		t.Errorf("said %s", out)
	}
}

func TestServe_WarnsOfAMissingQueue(t *testing.T) {
	sh := newShell(t)
	sh.configured("main")
	sh.migrate()
	for _, missing := range []bool{true, false} {
		r := sh.serving()
		r.stop()
		<-r.exit
		assert.Equal(t, strings.Contains(r.log.String(), "queue of deleted parents missing"), missing, "warned", &r.log)
		sh.want(0, "lfk install")
	}
}
