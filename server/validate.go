package server

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/service"
)

// What the service validates itself - names of workers, ids of runs, lengths - is not repeated here.

// firstOf is the first error that is one.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// required demands a text that is plain.
func required(field, text string) error {
	if text == "" {
		return &service.InvalidArgumentError{Field: field, Description: "is required"}
	}
	return plain(field, text)
}

// plain demands a text without control characters, which neither log lines nor PostgreSQL take.
func plain(field, text string) error {
	if strings.ContainsFunc(text, unicode.IsControl) {
		return &service.InvalidArgumentError{Field: field, Description: "must not contain control characters"}
	}
	return nil
}

// fromTTL is 0 for a ttl that is not set.
func fromTTL(ttl *durationpb.Duration) (time.Duration, error) {
	if ttl == nil {
		return 0, nil
	}
	if ttl.CheckValid() != nil || ttl.AsDuration() == 0 {
		return 0, &service.InvalidArgumentError{Field: "ttl", Description: service.AllowedTTL}
	}
	return ttl.AsDuration(), nil
}

// fromState is the state's name in package service, "" for any.
func fromState(state pb.RunState) (string, error) {
	name, known := pb.RunState_name[int32(state)]
	if !known {
		return "", &service.InvalidArgumentError{Field: "state", Description: fmt.Sprintf("%d is not a RunState", state)}
	}
	if state == pb.RunState_RUN_STATE_UNSPECIFIED {
		return "", nil
	}
	return strings.ToLower(strings.TrimPrefix(name, statePrefix)), nil
}

// Sizes of a page.
const (
	defaultPage = 50
	maxPage     = 1000
)

// page is where a list goes on. Its token is opaque to clients: the kind of list with its filters, as a hash, and the
// key behind which it goes on. So a token is of no use for another list.
type page struct {
	size  int
	list  string
	after string
}

func newPage(kind string, size int32, token string, filters ...string) (page, error) {
	hash := fnv.New64a()
	_, _ = fmt.Fprintf(hash, "%q", append(filters, kind))
	p := page{size: int(size), list: fmt.Sprintf("%016x", hash.Sum64())}
	switch {
	case size < 0 || size > maxPage:
		return p, &service.InvalidArgumentError{Field: "page_size", Description: fmt.Sprintf("from 1 to %d; 0 stands for %d", maxPage, defaultPage)}
	case size == 0:
		p.size = defaultPage
	}
	if token == "" {
		return p, nil
	}
	content, err := base64.RawURLEncoding.DecodeString(token)
	list, after, found := strings.Cut(string(content), "\n")
	if err != nil || !found || list != p.list || after == "" || plain("", after) != nil {
		return p, errForeignToken()
	}
	p.after = after
	return p, nil
}

func errForeignToken() error {
	return &service.InvalidArgumentError{
		Field: "page_token", Description: "is not the next_page_token of a list with the same filters",
	}
}

// afterNumber is the key of a list by number, 0 for the first page.
func (p page) afterNumber() (int64, error) {
	if p.after == "" {
		return 0, nil
	}
	after, err := strconv.ParseInt(p.after, 10, 64)
	if err != nil {
		return 0, errForeignToken()
	}
	return after, nil
}

// maxAnswer is what the entries of a page may take: clients receive 4 MiB unless they ask for more.
const maxAnswer = 3 << 20

// fill makes a page of what was found, one more than it may have if there are more, and the token of the next page. A page
// ends early rather than being too large for clients.
func fill[T any, M proto.Message](p page, found []T, convert func(*T) M, key func(*T) string) (entries []M, next string) {
	size := 0
	for i := range found {
		entry := convert(&found[i])
		size += proto.Size(entry)
		if len(entries) == p.size || size > maxAnswer && i > 0 {
			return entries, p.next(key(&found[i-1]))
		}
		entries = append(entries, entry)
	}
	return entries, ""
}

// next is the token of the page behind a key.
func (p page) next(after string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.list + "\n" + after))
}
