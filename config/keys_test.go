package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestLoad_SizesAreInBytesOrInPostgreSQLsUnits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "0MB": 0, "1000": 1000, "1000B": 1000, "8 kB": 8 << 10, "8KB": 8 << 10, "64MB": 64 << 20, "4gb": 4 << 30, "1TB": 1 << 40,
	} {
		got, err := loadWork("", []string{mainURL, "CARETAKER_LOAD_RATE=" + text})
		assert.That(t, err == nil && got.Load.Rate == want, "%s: got %+v, %v", text, got, err)
	}
}

func TestLoad_WhatCanBeSwitchedOffIsZero(t *testing.T) {
	t.Parallel()
	got, err := loadWork("", []string{
		mainURL, "CARETAKER_LOAD_LAG=0", "CARETAKER_LOAD_RATE=0", "CARETAKER_WORKERS_SWEEP_MAX_QUEUED=0",
	})
	assert.That(t, err == nil && reflect.DeepEqual(got.Load, limits{}) && got.Sweep.MaxQueued == 0, "got %+v, %v", got, err)
}

func TestLoad_DatabasesMayBeCalledAnything(t *testing.T) {
	t.Parallel()
	file := write(t, `
databases:
  zebra: {url: "postgres://zebra"}
  sec: {url: "postgres://sec"}
  shop_eu: {url: "postgres://shop_eu", replica_url: "postgres://far"}
  empty:
  main: {url: "postgres://main"}
`)
	got, err := loadWork(file, []string{
		"CARETAKER_DATABASES_SHOP_EU_REPLICA_URL=postgres://near",
		"CARETAKER_DATABASES_B2_URL=postgres://b2",
		"CARETAKER_DATABASES_NONE_URL=",
	})
	want := []Database{
		{Name: "main", URL: "postgres://main"},
		{Name: "sec", URL: "postgres://sec"},
		{Name: "b2", URL: "postgres://b2"},
		{Name: "shop_eu", URL: "postgres://shop_eu", ReplicaURL: "postgres://near"},
		{Name: "zebra", URL: "postgres://zebra"},
	}
	assert.That(t, err == nil && slices.Equal(got.Databases, want), "got %+v, %v, want %+v", got.Databases, err, want)
}

func TestLoad_EnvironmentAloneNamesDatabases(t *testing.T) {
	t.Parallel()
	got, err := loadWork("", []string{
		mainURL, "CARETAKER_DATABASES_SHOP_URL=postgres://shop",
		"CARETAKER_DATABASES_SHOP_EU_URL=postgres://eu", "CARETAKER_DATABASES_CI_URL=postgres://ci",
	})
	var names []string
	for _, d := range got.Databases {
		names = append(names, d.Name)
	}
	assert.That(t, err == nil && strings.Join(names, " ") == "main ci shop shop_eu", "got %v, %v", names, err)
}

func TestLoad_ReplicaURLIsAlwaysThatOfTheNameBeforeIt(t *testing.T) {
	t.Parallel()
	file := write(t, "databases: {shop: {url: 'postgres://shop'}, shop_replica: {url: 'postgres://other'}}")
	got, err := loadWork(file, []string{
		mainURL, "CARETAKER_DATABASES_SHOP_REPLICA_URL=postgres://1",
		"CARETAKER_DATABASES_SHOP_REPLICA_REPLICA_URL=postgres://2",
	})
	want := []Database{
		{Name: "shop", URL: "postgres://shop", ReplicaURL: "postgres://1"},
		{Name: "shop_replica", URL: "postgres://other", ReplicaURL: "postgres://2"},
	}
	assert.That(t, err == nil && slices.Equal(got.Databases[1:], want), "got %+v, %v", got.Databases, err)
	_, err = loadWork("", []string{mainURL, "CARETAKER_DATABASES_SHOP_REPLICA_URL=postgres://1"})
	if err == nil || !strings.Contains(err.Error(), "databases.shop.replica_url is set without "+
		"databases.shop.url: set both (to configure a database named shop_replica, set its url in the configuration file)") {
		t.Errorf("got %v", err)
	}
}

func TestMistyped_KnowsTheDatabasesOfTheEnvironmentAndNoValues(t *testing.T) {
	t.Parallel()
	for want, environment := range map[string]Environment{
		"CARETAKER_DATABASES_SHOP_ULR": {"CARETAKER_DATABASES_SHOP_URL=x", "CARETAKER_DATABASES_SHOP_ULR=x"},
		"CARETAKER_LISTENN":            {"CARETAKER_LISTENN=x", "CARETAKER_LISTEN=nonsense", AddressVariable + "=127.0.0.1:1"},
	} {
		if all := environment.Mistyped(); len(all) != 1 || !strings.Contains(all[0].Error(), want) {
			t.Errorf("got %v, want %s", all, want)
		}
	}
}

func TestLoad_ReadsTheRolesOfCertificates(t *testing.T) {
	t.Parallel()
	want := map[string]string{"alice@example.com": "admin", "spiffe://x/y": "viewer"}
	file := write(t, `
tls: {cert_file: c, key_file: k, client_ca_file: ca}
auth:
  certificates:
    alice@example.com: admin
    "spiffe://x/y": viewer
`)
	got, err := loadWork(file, []string{mainURL})
	assert.That(t, err == nil && reflect.DeepEqual(got.Auth.Certificates, want), "got %v, %v", got.Auth, err)
	for text, want := range map[string]map[string]string{
		`{"bob": "operator"}`: {"bob": "operator"}, "bob: operator": {"bob": "operator"}, "": want,
	} {
		got, err := loadWork(file, []string{mainURL, "CARETAKER_AUTH_CERTIFICATES=" + text})
		assert.That(t, err == nil && reflect.DeepEqual(got.Auth.Certificates, want), "%s: got %v, %v", text, got.Auth, err)
	}
	if _, err := loadWork(file, []string{mainURL, "CARETAKER_AUTH_CERTIFICATES=bob"}); err == nil ||
		!strings.Contains(err.Error(), `CARETAKER_AUTH_CERTIFICATES: "bob" is not a mapping`) {
		t.Errorf("got %v", err)
	}
}

func TestLoad_EmptyVariablesAreUnsetWhereEmptyIsNoValue(t *testing.T) {
	t.Parallel()
	want, err := loadWork(write(t, "log: {level: warn}\nmetrics_listen: \"\""), []string{mainURL})
	if err != nil {
		t.Fatal(err)
	}
	got, err := loadWork(write(t, "log: {level: WARN}"), []string{
		mainURL, "CARETAKER_LOG_LEVEL=", "CARETAKER_LOG_FORMAT=", "CARETAKER_METRICS_LISTEN=", "CARETAKER_LISTEN=", "CARETAKER_INSECURE=",
		"CARETAKER_SCHEDULER_ENABLED=", "CARETAKER_HISTORY_KEEP=", "CARETAKER_LOAD_LAG=", "CARETAKER_LOAD_RATE=",
		"CARETAKER_WORKERS_SWEEP_BATCH_SIZE=", "CARETAKER_WORKERS_SWEEP_SCHEDULE=",
		"CARETAKER_WORKERS_SWEEP_MAX_QUEUED=", "CARETAKER_WORKERS_SWEEP_CATCH_UP=",
	})
	same(t, got, want, err)
}

// Any file and environment is refused with a message, or is a configuration that reads the same
// again.
func FuzzLoad(f *testing.F) {
	for _, content := range []string{
		"", "listen: 127.0.0.1:0\n", "load:\n  lag: 10s\n  ignored: [a, b]\n  rate: 4GB\n", "workers:\n  sweep:\n    batch_size: 7\n",
		"databases:\n  main:\n    url: postgres://u@db/main\n  ci:\n    url: postgres://u@db/ci\n    replica_url: postgres://u@r/ci\n",
		"listen: [", "a: b\n", "workers:\n", "history:\n  keep: never\n", "- a\n", "--- a\n--- b\n", "listen: &a b\nmetrics_listen: *a\n",
	} {
		f.Add(content, "CARETAKER_LISTEN", "127.0.0.1:1")
	}
	f.Add("", "CARETAKER_WORKERS_SWEEP_BATCH_SIZE", "0x10")
	f.Add("", "CARETAKER_DATABASES_CI_URL", "postgres://%zz")
	f.Fuzz(func(t *testing.T, content, name, value string) {
		file := write(t, content)
		environ := []string{mainURL, name + "=" + value}
		first, err := loadWork(file, environ)
		if err != nil {
			assert.That(t, strings.TrimSpace(err.Error()) != "", "it is refused without words")
			return
		}
		second, err := loadWork(file, environ)
		assert.That(t, err == nil && reflect.DeepEqual(first, second), "read twice it is %+v and %+v, %v", first, second, err)
	})
}
