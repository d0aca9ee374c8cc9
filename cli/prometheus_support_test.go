//go:build prometheus

package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const deployed = "../deploy/prometheus/"

// prometheusProgram is where tools/require.sh has found or put a program of Prometheus.
func prometheusProgram(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	folders := []string{"/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "/home/linuxbrew/.linuxbrew/bin"}
	if cache, err := os.UserCacheDir(); err == nil {
		folders = append(folders, filepath.Join(cache, "caretaker/prometheus/usr/bin"))
	}
	for _, folder := range folders {
		if path := filepath.Join(folder, name); exec.Command(path, "--version").Run() == nil {
			return path
		}
	}
	t.Fatalf("no %s: start this test with make test-prometheus, which installs it", name)
	return ""
}

func fileContent(t *testing.T, name string) string {
	t.Helper()
	return string(assert.Must(os.ReadFile(name))(t))
}

// alertRule is a rule of alerts.yml or rules.yml.
type alertRule struct {
	Alert, Record, Expr string
	Annotations         map[string]string
}

func deployedRules(t *testing.T) (all []alertRule) {
	t.Helper()
	for _, name := range []string{"rules.yml", "alerts.yml"} {
		var file struct {
			Groups []struct{ Rules []alertRule }
		}
		assert.NoError(t, yaml.Unmarshal([]byte(fileContent(t, deployed+name)), &file))
		for _, g := range file.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

// causable is what alerts.yml becomes for a test that cannot wait for hours: the same expressions under names of their
// own, without "for", and with a look back over seconds.
func causable(t *testing.T) string {
	t.Helper()
	text := regexp.MustCompile(`\n +for: \S+`).ReplaceAllString(fileContent(t, deployed+"alerts.yml"), "")
	for _, change := range [][2]string{
		{"alert: Caretaker", "alert: Caused"},
		{"name: caretaker-", "name: caused-"},
		{"[2h] offset 48h", "[5s] offset 5s"},
		{"[49h]", "[5s]"},
		{"offset 2h", "offset 5s"},
		{"[2h]", "[5s]"},
		{"maintenance_backlog_measured_age_seconds) > 900", "maintenance_backlog_measured_age_seconds) > 25"},
	} {
		assert.Require(t, strings.Contains(text, change[0]), "alerts.yml has no %q any more", change[0])
		text = strings.ReplaceAll(text, change[0], change[1])
	}
	return text
}

// prometheus is a real Prometheus, asked over its API.
type prometheus struct {
	t    *testing.T
	http string
	log  *screen
}

// startPrometheus starts one that scrapes servers, with the rules as they are and as causable.
func startPrometheus(t *testing.T, targets ...string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	rules := assert.Must(filepath.Abs(deployed))(t)
	config := fmt.Sprintf("global: {scrape_interval: 2s, evaluation_interval: 1s}\n"+
		"rule_files: [%q, %q, caused.yml]\n"+
		"scrape_configs: [{job_name: caretaker, static_configs: [{targets: [%s]}]}]\n",
		filepath.Join(rules, "rules.yml"), filepath.Join(rules, "alerts.yml"), `"`+strings.Join(targets, `", "`)+`"`)
	for name, content := range map[string]string{"prometheus.yml": config, "caused.yml": causable(t)} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	address := "127.0.0.1:" + freePorts(t, 1)[0]
	p := &prometheus{t: t, http: "http://" + address, log: &screen{}}
	c := exec.Command(prometheusProgram(t, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	c.Stdout, c.Stderr = p.log, p.log
	assert.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	eventually(t, "Prometheus is ready", p.log, func() bool {
		_, err := get(p.http + "/-/ready")
		return err == nil
	})
	return p
}

// ask asks the API. The answer goes into data.
func (p *prometheus) ask(path string, query url.Values, data any) error {
	body, err := get(p.http + "/api/v1/" + path + "?" + query.Encode())
	if err != nil {
		return err
	}
	return json.Unmarshal(body, &struct {
		Data any `json:"data"`
	}{data})
}

// query are the labels of what an expression gives now.
func (p *prometheus) query(expr string) ([]map[string]string, error) {
	var answer struct {
		Result []struct {
			Metric map[string]string
		}
	}
	err := p.ask("query", url.Values{"query": {expr}}, &answer)
	var found []map[string]string
	for _, r := range answer.Result {
		found = append(found, r.Metric)
	}
	return found, err
}

// series are the labels of all series that a selector finds.
func (p *prometheus) series(selector string) (found []map[string]string) {
	p.t.Helper()
	if err := p.ask("series", url.Values{"match[]": {selector}}, &found); err != nil {
		p.t.Errorf("%s: %v", selector, err)
	}
	return found
}

// firingAlert is an alert that fires.
type firingAlert struct {
	State               string
	Labels, Annotations map[string]string
}

// firing are the alerts that fire of those that can be caused, by their names without prefix.
func (p *prometheus) firing() map[string][]firingAlert {
	p.t.Helper()
	var answer struct{ Alerts []firingAlert }
	if err := p.ask("alerts", nil, &answer); err != nil {
		p.t.Fatalf("%v\n%s", err, p.log)
	}
	found := map[string][]firingAlert{}
	for _, a := range answer.Alerts {
		if name, caused := strings.CutPrefix(a.Labels["alertname"], "Caused"); caused && a.State == "firing" {
			found[name] = append(found[name], a)
		}
	}
	return found
}

// watchedEstate is the demo's estate, with a Prometheus that scrapes two servers, of which one comes later.
type watchedEstate struct {
	*prometheus
	sh    *shell
	sql   map[string]*pgx.Conn
	ports []string
	urls  map[string]string
}

// watchedServer is a server in a process of its own.
type watchedServer struct {
	maintenancev1.MaintenanceServiceClient
	t       *testing.T
	process *exec.Cmd
	log     *screen
}

// troubledMainSQL makes rows with which runs in main have trouble. Some users and a bot must not be
// deleted. A group cannot be restored, and children cannot be deleted, or only slowly.
const troubledMainSQL = `
INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id)
SELECT i, 'alert' || i, 'alert' || i, 0, 'active', 1, 1 FROM generate_series(9001, 9010) i;
INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at)
SELECT i, now(), now(), now() FROM generate_series(9001, 9010) i;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON namespaces FOR EACH ROW WHEN (OLD.id = 14) EXECUTE FUNCTION refuse();
CREATE TRIGGER refuse BEFORE INSERT ON ghost_user_migrations FOR EACH ROW WHEN (NEW.user_id = 301) EXECUTE FUNCTION refuse();
CREATE TABLE faulty (id bigserial PRIMARY KEY, faulter_id bigint); CREATE INDEX ON faulty (faulter_id);
INSERT INTO faulty (faulter_id) VALUES (1);
CREATE TRIGGER refuse BEFORE DELETE ON faulty FOR EACH ROW EXECUTE FUNCTION refuse();
CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); RETURN OLD; END $$;
CREATE TABLE dozing (id bigserial PRIMARY KEY, dozer_id bigint); CREATE INDEX ON dozing (dozer_id);
CREATE TABLE dozers (id bigint PRIMARY KEY);
INSERT INTO dozing (dozer_id) SELECT 1 FROM generate_series(1, 600);
CREATE TRIGGER nap BEFORE DELETE ON dozing FOR EACH ROW EXECUTE FUNCTION nap()`

// slowChildrenSQL makes a run in ci last as long as it may, over records that are old already.
const slowChildrenSQL = `
CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); RETURN OLD; END $$;
CREATE TABLE sleeping (id bigserial PRIMARY KEY, sleeper_id bigint); CREATE INDEX ON sleeping (sleeper_id);
INSERT INTO sleeping (sleeper_id) SELECT 1 FROM generate_series(1, 2000);
CREATE TRIGGER nap BEFORE DELETE ON sleeping FOR EACH ROW EXECUTE FUNCTION nap();
INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, created_at)
VALUES ('public.sleepers', 1, now() - interval '7 hours')`

const morePartitionsSQL = `
DO $$ BEGIN
  FOR i IN 101..108 LOOP
    EXECUTE format('CREATE TABLE gitlab_partitions_dynamic.more_%s PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (%s)', i, i);
  END LOOP;
END $$`

const troubledDefinitions = `
faulty: [{table: faulters, column: faulter_id, on_delete: async_delete}]
dozing: [{table: dozers, column: dozer_id, on_delete: async_delete}]
sleeping: [{table: sleepers, column: sleeper_id, on_delete: async_delete}]
`

func newWatchedEstate(t *testing.T) *watchedEstate {
	t.Helper()
	sh := alone(t)
	e := &watchedEstate{sh: sh, sql: map[string]*pgx.Conn{}, urls: map[string]string{}, ports: freePorts(t, 2)}
	for _, name := range []string{"main", "ci", "sec"} {
		e.urls[name] = databases.Clone(t, devdb.Template{Name: "bare", Schema: name})
		sh.set("CARETAKER_DATABASES_"+strings.ToUpper(name)+"_URL", e.urls[name])
	}
	assert.NoError(t, devdb.LoadDemo(t.Context(), e.urls))
	for name, trouble := range map[string]string{"main": troubledMainSQL, "ci": slowChildrenSQL, "sec": morePartitionsSQL} {
		e.sql[name] = e.connect(t, name)
		execute(t, e.sql[name], trouble)
	}
	sh.defined(devdb.Definitions() + troubledDefinitions)
	sh.migrate()
	e.prometheus = startPrometheus(t, "127.0.0.1:"+e.ports[0], "127.0.0.1:"+e.ports[1])
	return e
}

func (e *watchedEstate) connect(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	conn := servicetest.Connect(t, e.urls[database])
	return conn
}

// serve starts one of the two servers, and waits until Prometheus has scraped it twice.
func (e *watchedEstate) serve(which int, environment ...string) *watchedServer {
	e.t.Helper()
	s := &watchedServer{t: e.t}
	target := "127.0.0.1:" + e.ports[which]
	s.process, s.log = e.sh.process("serve", append(environment, "CARETAKER_LISTEN=127.0.0.1:0", "CARETAKER_METRICS_LISTEN="+target)...)
	conn, err := grpc.NewClient(s.log.field(e.t, "serving", "listen"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close() })
	s.MaintenanceServiceClient = maintenancev1.NewMaintenanceServiceClient(conn)
	eventually(e.t, "Prometheus scrapes "+target, e.log, func() bool {
		found, err := e.query(`sum_over_time(up{instance="` + target + `"}[1m]) >= 2`)
		return err == nil && len(found) > 0
	})
	return s
}

// run asks for a run and returns it when it has ended, or at once when async.
func (s *watchedServer) run(worker, database string, async bool) *maintenancev1.Run {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), devdb.WaitTimeout)
	defer cancel()
	answer, err := s.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker, Database: database, Async: async})
	assert.Require(s.t, err == nil, "%s %s: %v\n%s", worker, database, err, s.log)
	return answer.GetRun()
}

// until waits until a query of main gives a row.
func (e *watchedEstate) until(what, sql string) {
	e.t.Helper()
	eventually(e.t, what, e.log, func() bool {
		tag, err := e.sql["main"].Exec(context.Background(), sql)
		return err == nil && tag.RowsAffected() > 0
	})
}
