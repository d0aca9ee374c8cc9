//go:build prometheus

package cli_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/internal/assert"
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
	content := assert.Must(os.ReadFile(name))(t)
	return string(content)
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
		if !strings.Contains(text, change[0]) {
			t.Fatalf("alerts.yml has no %q any more", change[0])
		}
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

// ask asks the API; what it answers goes into data.
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
