package cli_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestProtect_ListsAndEndsProtections(t *testing.T) {
	sh := newShell(t)
	sh.prepared()
	r := sh.serving()
	r.want(0, "protect user 7 --reason evidence", "user 7 is protected until caretaker unprotect")
	r.want(0, "protect group 8 --reason later --for 8h", "group 8 is protected until 2")
	r.want(0, "protect user 7 --reason mine --for 8h", "user 7 is kept as it was, protected until caretaker unprotect: longer already, by ",
		": evidence; caretaker unprotect first")
	r.want(0, "protect group 8 --reason later --for 1h", "group 8 is kept as it was, protected until 2")
	r.want(0, "protect group 8 --reason later --for 9h", "group 8 is protected until 2")
	out := r.want(0, "protected", "KIND   ID", "group  8", "user   7", "evidence")
	assert.That(t, strings.Index(out, "group") <= strings.Index(out, "user "), "not in order:\n%s", out)
	assert.Lacks(t, r.want(0, "protected --kind user"), "later")
	r.want(0, "protected --page-size 1", "more: --page-token ")
	p, _ := document(t, r.want(0, "unprotect user 7 --output json"))["protection"].(map[string]any)
	assert.That(t, p["id"] == "7" && p["reason"] == "evidence", "got %v", p)
	r.want(2, "unprotect user 7", "nothing of this kind and id is protected; caretaker protected has all")
	r.want(0, "unprotect group 8", "group 8 is not protected any more")
	r.want(2, "protect project 7 --reason x", `"project": must be user or group`)
	r.want(2, "protect user x --reason x", `"x" is not the ID of a user`)
	r.want(2, "protect user 7", "--reason REASON is required")
	r.want(2, "protect user", "missing argument ID")
	r.want(2, "protect user 7 --reason x --for 1ns", "--for: from 1s to 87600h")
	r.want(2, "protected 7", "unknown command")
}
