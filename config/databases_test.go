package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

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
		"databases.shop.url: set that, too. (Of a database shop_replica the url can be set in the file only)") {
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
