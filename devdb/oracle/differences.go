package oracle

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Differences compares the databases with the model. It returns up to 20 differences of each table:
// rows that are missing, and rows that must not exist.
func (e *Estate) Differences(ctx context.Context, to Databases) (found []string, err error) {
	want, tables := e.Rows(), Tables()
	for name := range want {
		if _, is := tables[name]; !is {
			return nil, fmt.Errorf("the model has table %s, but no query reads this table", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		t := tables[name]
		rows, err := to.of(t.Database).Query(ctx, t.SQL)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		there, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found = append(found, differences(name, want[name], there)...)
	}
	for _, sql := range dangling() {
		var n int
		if err := to.Main.QueryRow(ctx, sql).Scan(&n); err != nil {
			return nil, fmt.Errorf("%s: %w", sql, err)
		}
		if n > 0 {
			found = append(found, fmt.Sprintf("%d rows refer to missing rows: %s", n, sql))
		}
	}
	return found, nil
}

func differences(table string, want, there []string) (found []string) {
	left := map[string]bool{}
	for _, row := range there {
		left[row] = true
	}
	for _, row := range want {
		if !left[row] {
			found = append(found, fmt.Sprintf("%s: %q is missing", table, row))
		}
		delete(left, row)
	}
	for _, row := range slices.Sorted(maps.Keys(left)) {
		found = append(found, fmt.Sprintf("%s: unexpected row %q", table, row))
	}
	return found[:min(len(found), 20)]
}

// dangling are queries that count rows of main whose reference leads nowhere, and late issues that have lost it.
func dangling() (queries []string) {
	for _, r := range [][4]string{
		{"issues", "author_id", "users"},
		{"notes", "author_id", "users"},
		{"notes", "project_id", "projects"},
		{"notes", "noteable_id", "issues", "x.noteable_type = 'Issue'"},
		{"issues", "project_id", "projects"},
		{"issues", "namespace_id", "namespaces"},
		{"members", "user_id", "users"},
		{"members", "member_namespace_id", "namespaces"},
		{"members", "source_id", "namespaces", "x.source_type = 'Namespace'"},
		{"members", "source_id", "projects", "x.source_type = 'Project'"},
		{"routes", "source_id", "namespaces", "x.source_type = 'Namespace'"},
		{"routes", "source_id", "projects", "x.source_type = 'Project'"},
		{"projects", "creator_id", "users"},
		{"projects", "namespace_id", "namespaces"},
		{"projects", "project_namespace_id", "namespaces"},
		{"namespaces", "parent_id", "namespaces"},
		{"namespaces", "owner_id", "users"},
		{"personal_access_tokens", "user_id", "users"},
		{"import_placeholder_user_details", "placeholder_user_id", "users"},
		{"import_placeholder_user_details", "namespace_id", "namespaces"},
		{"group_group_links", "shared_group_id", "namespaces"},
		{"group_deletion_schedules", "group_id", "namespaces"},
		{"namespace_details", "namespace_id", "namespaces"},
		{"ghost_user_migrations", "user_id", "users"},
		{"oauth_access_tokens", "resource_owner_id", "users"},
	} {
		condition := r[3]
		if condition == "" {
			condition = "true"
		}
		queries = append(queries, fmt.Sprintf(`SELECT count(*) FROM %s x WHERE %s AND x.%s IS NOT NULL
			AND NOT EXISTS (SELECT FROM %s p WHERE p.id = x.%s)`, r[0], condition, r[1], r[2], r[1]))
	}
	return append(queries, fmt.Sprintf(`SELECT count(*) FROM issues WHERE id >= %d AND author_id IS NULL`, FirstLate))
}
