package devdb

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func BenchmarkClone(b *testing.B) {
	for _, name := range []string{"", "main", "all"} {
		b.Run("schema="+name, func(b *testing.B) {
			tpl := Template{Name: "bench" + name, Schema: name}
			databases.Clone(b, tpl)
			for b.Loop() {
				start := time.Now()
				url := databases.Clone(b, tpl)
				_ = start
				conn, err := pgx.Connect(context.Background(), url)
				if err != nil {
					b.Fatal(err)
				}
				_ = conn.Close(context.Background())
			}
		})
	}
}
