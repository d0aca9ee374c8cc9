package devdb

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"os"
	"strconv"
)

// planMode is the environment variable with plan_cache_mode of test clusters. Tests run most
// statements a few times on a few rows. With force_generic_plan each is planned once a connection,
// a tenth of the tests' processor time less.
const planMode = "CARETAKER_TEST_PLANS"

// testSettings returns the settings of test clusters. Autovacuum is off: it slows
// tests down, and their databases live for seconds.
func testSettings(own map[string]string) map[string]string {
	all := map[string]string{
		"autovacuum": "off", "jit": "off", "max_connections": "600",
		"plan_cache_mode": cmp.Or(os.Getenv(planMode), "auto"),
	}
	maps.Copy(all, own)
	return all
}

// keepMemory makes sessions keep memory that they free. Else planning a statement
// takes and returns the same pages each time. Only glibc knows these names.
const keepMemory = "glibc.malloc.trim_threshold=268435456:glibc.malloc.mmap_threshold=33554432:" +
	"glibc.malloc.top_pad=1048576"

// quickPassword is SQL that stores the superuser's password hashed once instead of
// 4,096 times: tests open thousands of connections, and the password is random.
func quickPassword(password string) string {
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	text := base64.StdEncoding.EncodeToString
	salt := rand.Text()
	salted := mac([]byte(password), salt+"\x00\x00\x00\x01") // PBKDF2 with one iteration
	stored := sha256.Sum256(mac(salted, "Client Key"))
	return "ALTER ROLE " + superuser + " PASSWORD 'SCRAM-SHA-256$1:" + text([]byte(salt)) + "$" +
		text(stored[:]) + ":" + text(mac(salted, "Server Key")) + "'"
}

// settings are the server's settings: light, and for an ephemeral cluster as fast as a temporary
// database can be.
func (c *Cluster) settings(ctx context.Context, found programs) map[string]string {
	all := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(c.port),
		"unix_socket_directories": "",
		"shared_buffers":          "128MB",
		"max_connections":         "200",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
	}
	if c.config.Ephemeral || c.config.unsafe {
		maps.Copy(all, map[string]string{
			"max_connections":    "300",
			"fsync":              "off",
			"synchronous_commit": "off",
			"full_page_writes":   "off",
			// In the folder: a killed server leaves nothing in /dev/shm.
			"dynamic_shared_memory_type": "mmap",
			// Several clusters may run at once: their WAL must not fill a disk.
			"max_wal_size": "256MB",
		})
	}
	if found.library(ctx, "pg_stat_statements") {
		all["shared_preload_libraries"] = "pg_stat_statements"
		// Tests share a cluster. When the list is full, statements are evicted, also
		// those of a running test, so the list is long and starts empty.
		all["pg_stat_statements.max"] = "50000"
		all["pg_stat_statements.save"] = "off"
	}
	maps.Copy(all, c.config.Settings)
	return all
}
