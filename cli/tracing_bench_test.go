package cli_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"go.opentelemetry.io/otel"

	settings "github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/lfkadmin"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/telemetry"
)

// BenchmarkTrace_Drain cleans up after 20,000 deleted parents with 100,000 children: without any tracing, with ids alone
// as when no exporter is configured, and with traces that are sent to a collector.
func BenchmarkTrace_Drain(b *testing.B) {
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	b.Cleanup(collector.Close)
	b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	before := otel.GetTracerProvider()
	b.Cleanup(func() { otel.SetTracerProvider(before) })
	for _, c := range []struct {
		name   string
		config telemetry.Config
	}{{"off", telemetry.Config{Disabled: true}}, {"ids", telemetry.Config{}}, {"exported", telemetry.Config{Traces: true}}} {
		b.Run(c.name, func(b *testing.B) {
			started, err := telemetry.Start(context.Background(), c.config)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = started.Shutdown(context.Background()) })
			drain(b)
		})
	}
}

func drain(b *testing.B) {
	b.Helper()
	ctx := context.Background()
	url := databases.Clone(b, devdb.Template{Name: "bare"})
	main, err := repo.Open(ctx, "main", url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(main.Close)
	if _, err := main.Migrate(ctx); err != nil {
		b.Fatal(err)
	}
	if _, err := lfkadmin.New(main).InstallQueue(ctx); err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "definitions.yml")
	if err := os.WriteFile(file, []byte(oneKey), 0o600); err != nil {
		b.Fatal(err)
	}
	definitions, err := loosefk.LoadDefinitions(file)
	if err != nil {
		b.Fatal(err)
	}
	config := service.Config{Databases: []*repo.Database{main}, Logger: slog.New(slog.DiscardHandler)}
	service.Settings[loosefk.Config](&config).Definitions = definitions
	settings.Defaults(&config)
	s, err := service.New(config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Shutdown(ctx) })
	for b.Loop() {
		b.StopTimer()
		_, err := main.Pool().Exec(ctx, `DROP TABLE IF EXISTS c; CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
			INSERT INTO c (p_id) SELECT i % 20000 + 1 FROM generate_series(1, 100000) i; CREATE INDEX ON c (p_id); ANALYZE c;
			INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) SELECT 'public.p', generate_series(1, 20000)`)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		run, err := s.RunBatch(ctx, service.RunRequest{Worker: worker, Database: "main"})
		if err != nil || run.Counts["deleted_rows"] != 100_000 {
			b.Fatal(run, err)
		}
	}
}
