package devdb

import (
	"context"
	"testing"
)

func TestCluster_StartsCreatesDatabasesAndStops(t *testing.T) {
	ctx := context.Background()
	c, err := Start(ctx, Config{Dir: t.TempDir() + "/dev", Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.CreateDatabase(ctx, "ma in"); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}
