package devdb

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// schemaFacts are statements about a database in one spelling, whether they
// were read from the notation or from the catalogue: "users.email character
// varying not null default ”", "users unique index (email)" and so on.
type schemaFacts map[string]bool

func (f schemaFacts) add(format string, args ...any) { f[fmt.Sprintf(format, args...)] = true }

var sqlTypes = map[string]string{
	"varchar": "character varying", "ts": "timestamp without time zone", "tstz": "timestamp with time zone",
}

// readNotation returns the facts of one database of testdata/schema.txt.
func readNotation(t *testing.T, database string) schemaFacts {
	t.Helper()
	text, err := os.ReadFile("testdata/schema.txt")
	if err != nil {
		t.Fatal(err)
	}
	facts, inside, table := schemaFacts{}, false, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "# "):
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "# "), ":")
			inside = name == database
		case !inside || line == "":
		case strings.HasPrefix(line, "  "):
			for _, item := range splitItems(line) {
				readItem(t, facts, table, item)
			}
		default:
			table = strings.Fields(line)[0]
			readHead(t, facts, table, line)
		}
	}
	if len(facts) == 0 {
		t.Fatalf("no tables of %s", database)
	}
	return facts
}

var partitioned = regexp.MustCompile(`partitioned by list \((\w+)\): (\w+) = ([\d, ]+)$`)

func readHead(t *testing.T, facts schemaFacts, table, line string) {
	t.Helper()
	facts.add("table %s", table)
	if line == table {
		return
	}
	match := partitioned.FindStringSubmatch(line)
	if match == nil {
		t.Fatalf("not understood: %s", line)
	}
	facts.add("%s partitioned LIST (%s)", table, match[1])
	for number := range strings.SplitSeq(match[3], ", ") {
		facts.add("gitlab_partitions_dynamic.%s_%s of %s FOR VALUES IN ('%s')", match[2], number, table, number)
	}
}

// splitItems splits at semicolons; none is inside quotes or parentheses.
func splitItems(line string) []string {
	items := strings.Split(line, ";")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}

var (
	constraintItem = regexp.MustCompile(`^(unique|index|gin|check|pk) (\(.*\))( where .*)?$`)
	columnItem     = regexp.MustCompile(`^(\w+) ([a-z]+(?:\[\])?)([!#]?)(?: =('[^']*'|\S+))?(?: >(\w+):([CNR]))?$`)
)

func readItem(t *testing.T, facts schemaFacts, table, item string) {
	t.Helper()
	switch item {
	case "id":
		facts.add("%s.id bigint not null default nextval('%s_id_seq')", table, table)
		facts.add("%s primary key (id)", table)
		return
	case "times", "times!", "times!z":
		kind := map[string]string{"times": "ts", "times!": "ts!", "times!z": "tstz!"}[item]
		readItem(t, facts, table, "created_at "+kind)
		readItem(t, facts, table, "updated_at "+kind)
		return
	}
	if match := constraintItem.FindStringSubmatch(item); match != nil {
		kind := map[string]string{"unique": "unique index", "gin": "gin index", "pk": "primary key"}[match[1]]
		if kind == "" {
			kind = match[1]
		}
		facts.add("%s %s %s%s", table, kind, match[2], match[3])
		return
	}
	readColumn(t, facts, table, item)
}

func readColumn(t *testing.T, facts schemaFacts, table, item string) {
	t.Helper()
	match := columnItem.FindStringSubmatch(item)
	if match == nil {
		t.Fatalf("%s: not understood: %s", table, item)
	}
	name, kind, mark, preset, target, action := match[1], match[2], match[3], match[4], match[5], match[6]
	if long := sqlTypes[kind]; long != "" {
		kind = long
	}
	fact := fmt.Sprintf("%s.%s %s", table, name, kind)
	if mark != "" {
		fact += " not null"
	}
	if preset != "" {
		fact += " default " + preset
	}
	facts[fact] = true
	if mark == "#" {
		facts.add("%s primary key (%s)", table, name)
	}
	if target != "" {
		facts.add("%s.%s references %s on delete %s", table, name, target, map[string]string{"C": "CASCADE", "N": "SET NULL", "R": "NO ACTION"}[action])
	}
}
