package config

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Database has the URLs of a configured database.
type Database struct {
	Name string
	// URL is the address of the primary: postgres://…
	URL string `key:"url" example:"postgres://caretaker@db.example/application"`
	// ReplicaURL is the address of a read replica, for read-only queries.
	ReplicaURL string `key:"replica_url" example:"postgres://caretaker@standby.example/application"`
}

// GitLabDatabases returns GitLab's databases in rotation order. Only main must exist.
func GitLabDatabases() []string { return []string{"main", "ci", "sec"} }

// databaseName matches a valid database name.
var databaseName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,30}$`)

// nameRule describes databaseName.
const nameRule = "a database name must start with a lower-case letter, and have at most 31 lower-case letters, " +
	"digits and underscores"

// CheckName returns an error for an invalid database name.
func CheckName(name string) error {
	if !databaseName.MatchString(name) {
		return errors.New(nameRule)
	}
	return nil
}

// anyName represents a database name in the keys of [Config.Keys].
const anyName = "<name>"

// inRotation returns GitLab's databases and the named ones in rotation order: main, ci, sec, then
// the others by name.
func inRotation(names []string) []string {
	others := slices.DeleteFunc(slices.Clone(names),
		func(name string) bool { return slices.Contains(GitLabDatabases(), name) })
	slices.Sort(others)
	return append(GitLabDatabases(), slices.Compact(others)...)
}

// databasesInFile returns the names of the databases in a file's document.
func databasesInFile(document *yaml.Node) (names []string) {
	section := child(document, "databases")
	if section == nil || section.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i < len(section.Content); i += 2 {
		if name := section.Content[i].Value; databaseName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}

// child returns the value of a key of a mapping, nil for a missing key.
func child(mapping *yaml.Node, key string) *yaml.Node {
	if mapping == nil || resolved(mapping).Kind != yaml.MappingNode {
		return nil
	}
	entries := resolved(mapping).Content
	for i := 0; i+1 < len(entries); i += 2 {
		if entries[i].Value == key {
			return resolved(entries[i+1])
		}
	}
	return nil
}

// databaseURL matches the variables of URLs. It matches the shortest name, so that a variable that
// ends in _REPLICA_URL is a replica_url.
var databaseURL = regexp.MustCompile(
	`^` + prefix + `DATABASES_([A-Z][A-Z0-9_]{0,30}?)(_REPLICA)?_URL$`)

// databasesInEnvironment returns the names of the databases whose URL a variable sets.
func databasesInEnvironment(environ []string) (names []string) {
	for _, entry := range environ {
		variable, _, _ := strings.Cut(entry, "=")
		if found := databaseURL.FindStringSubmatch(variable); len(found) > 1 && found[1] != "REPLICA" {
			names = append(names, strings.ToLower(found[1]))
		}
	}
	return names
}

// inFileOnly reports that a key has no variable: CARETAKER_DATABASES_SHOP_REPLICA_URL is always
// databases.shop.replica_url, and never databases.shop_replica.url.
func inFileOnly(path string) bool {
	return strings.HasPrefix(path, "databases.") && strings.HasSuffix(path, "replica.url")
}

// Check returns an error for an invalid PostgreSQL URL. A wrong replica_url is no error: the server
// then reads from the primary, and warns.
func (d Database) Check(key, text string) error {
	u, err := url.Parse(text)
	isURL := err == nil && (u.Scheme == "postgres" || u.Scheme == "postgresql")
	if key != "url" || text == "" || isURL || !strings.Contains(text, "://") && strings.Contains(text, "=") {
		return nil
	}
	return errors.New("is not a PostgreSQL URL (not shown, because it may contain a password): " +
		"use a URL such as postgres://caretaker@db:5432/gitlab")
}
