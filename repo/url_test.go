package repo_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
)

func TestOpen_AnErrorHasNoPartOfThePassword(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"postgres://u:k@77q@h/db": "write % as %25", "postgres://u:77q/k@h/db": "write % as", "postgres://u:12/77q@h/db": "write % as",
		"postgres://u:1?77q@h@h/db": "write % as", "postgres://u:1?k=/77q@h/db": "write % as", "postgres://u:%zz77q@h/db": "write % as",
		"postgres://u:77q@h:port/db": "write % as", "postgres://u:77q@h/db?sslmode=x": "failed to configure TLS (sslmode is invalid)",
		"postgres://u:77q@h/db?sslpassword=77q&connect_timeout=x": "invalid connect_timeout", "postgre://u:77q@h/db?a=b": "is not a URL such as",
		"host=h password=k 77q dbname=d": "quote values with spaces", "host=h password='77q": "quote values with spaces",
	} {
		_, err := repo.Open(t.Context(), "main", url)
		if err == nil || strings.Contains(err.Error(), "77q") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"postgres://h/db?user=a@b", "postgres://u:a%40b@h/db?application_name=a@b", "host=h password=a@b", "postgres:///db?host=/run"} {
		assert.Must(repo.Open(t.Context(), "main", url))(t).Close()
	}
}
