package cli_test

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	_ "time/tzdata" // hosts of tests may have no zones
)

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
			eventually(t, "fires are missed", log, func() bool { return strings.Contains(log.String(), "fires missed") })
			signal(t, server, syscall.SIGTERM)
			_ = server.Wait()
			wantUTC(t, "the log", log.String())
			if !strings.Contains(log.String(), "OpenTelemetry warning") || strings.Contains(log.String(), "secret") {
				t.Errorf("what OpenTelemetry says: %s", log)
			}
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
		if strings.Contains(line, "+05:30") || strings.Contains(line, "+0530") || strings.Contains(line, "IST") {
			t.Errorf("%s has a time of the host's zone: %s", what, line)
		}
	}
}

func TestServe_AnEndpointOfOpenTelemetryThatIsNoneIsAMistake(t *testing.T) {
	sh := newShell(t)
	sh.prepared()
	server, out := sh.process("serve", "OTEL_EXPORTER_OTLP_ENDPOINT=:::", "CARETAKER_LISTEN=127.0.0.1:0", "CARETAKER_METRICS_LISTEN=")
	if err := server.Wait(); err == nil || server.ProcessState.ExitCode() != 1 {
		t.Errorf("got %v, exit %d", err, server.ProcessState.ExitCode())
	}
	if !strings.Contains(out.String(), "caretaker: OTEL_EXPORTER_OTLP_ENDPOINT is no URL") || strings.Contains(out.String(), "parse") {
		t.Errorf("said %s", out)
	}
}
