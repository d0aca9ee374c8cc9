package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/caretaker-go/caretaker/config"
	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// receiptsCommand lists the receipts of changes, like its subcommand list, by querying the server.
// verify and head connect to the databases.
func receiptsCommand(a *app) *cobra.Command {
	command, list := listReceiptsCommand(a, "receipts"), listReceiptsCommand(a, "list")
	a.clientFlags(list.Flags())
	command.AddCommand(list, verifyReceiptsCommand(a), receiptHeadsCommand(a))
	return command
}

// listReceiptsCommand lists the receipts of one database. --key requires --table.
func listReceiptsCommand(a *app, use string) *cobra.Command {
	request := &pb.ListReceiptsRequest{}
	var others, matching []string
	list := func(
		client api, ctx context.Context, r *pb.ListReceiptsRequest, options ...grpc.CallOption,
	) (*pb.ListReceiptsResponse, error) {
		answer, err := client.ListReceipts(ctx, r, options...)
		if err == nil && r.GetDatabase() == "" && r.GetPageToken() == "" && !a.asJSON {
			others = otherDatabases(ctx, client)
			if len(answer.GetReceipts()) == 0 && answer.GetNextPageToken() == "" {
				matching = databasesWith(ctx, client, r, others)
			}
		}
		return answer, err
	}
	command := &cobra.Command{
		Use:   use,
		Short: "List receipts of deleted and updated rows, newest first",
		RunE: call(a, list, request, func(out *terminal, answer *pb.ListReceiptsResponse) error {
			hint := "showing database %s: to show another database, use --database %s"
			if len(matching) > 0 {
				others, hint = matching, "database %s has no matching receipts: to show those of another database, use --database %s"
			} else {
				warnNoReceipts(out, request, answer)
			}
			if len(others) > 0 {
				out.note(hint, mainDatabase, strings.Join(others, " or "))
			}
			return describeReceipts(out, answer)
		}),
	}
	command.Args = cobra.MatchAll(commandOnly, func(*cobra.Command, []string) error {
		if request.GetKey() != "" && request.GetTable() == "" {
			return errors.New("--key requires --table")
		}
		return nil
	})
	flags := command.Flags()
	flags.StringVar(&request.Database, "database", "", "database `name` (default main)")
	flags.StringVar(&request.Table, "table", "", "only entries for this `table`")
	flags.StringVar(&request.Key, "key", "", "only entries with this `key`, or with a range of "+
		"keys that includes it")
	flags.StringVar(&request.RunId, "run", "", "only entries from the run with this `id`")
	flags.Int64Var(&request.JobId, "job", 0, "only entries from the job with this `id`")
	pageFlags(command, "older receipts", &request.PageToken)
	return command
}

// otherDatabases returns the databases of the server except main. It returns none if the server
// does not list them.
func otherDatabases(ctx context.Context, client api) (names []string) {
	answer, _ := client.ListLeases(ctx, &pb.ListLeasesRequest{PageSize: maxPageSize})
	for _, l := range answer.GetLeases() {
		if l.GetDatabase() != mainDatabase {
			names = append(names, l.GetDatabase())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// databasesWith returns which of the databases have receipts for a request.
func databasesWith(ctx context.Context, client api, request *pb.ListReceiptsRequest, names []string) (found []string) {
	for _, name := range names {
		some := proto.CloneOf(request)
		some.Database, some.PageSize = name, 1
		if answer, _ := client.ListReceipts(ctx, some); len(answer.GetReceipts()) > 0 {
			found = append(found, name)
		}
	}
	return found
}

// describeReceipts prints a line for each receipt, with its lowest and highest key.
func describeReceipts(out *terminal, answer *pb.ListReceiptsResponse) error {
	columns := []column{
		col("RECEIPT"), col("AT", timestamp), col("TABLE", cutLast), col("ACTION"), col("ROWS"),
		col("KEYS", dropFirst), col("RULE", cut, dropSecond), col("BY", dropFirst),
		col("ASKED BY", cut, dropSecond),
	}
	return printList(out, "no receipts", columns, answer.GetReceipts(), func(r *pb.Receipt) []any {
		keys := cmp.Or(r.GetLowestKey(), none)
		if r.GetHighestKey() != r.GetLowestKey() {
			keys += " to " + r.GetHighestKey()
		}
		var by any = runID{r.GetWorker() + " ", r.GetRunId()}
		if r.GetJobId() != 0 {
			by = fmt.Sprint(r.GetWorker(), " ", r.GetJobId())
		}
		return []any{
			r.GetSequence(), r.GetAt(), r.GetTable(), r.GetAction(), number(r.GetRows()), keys,
			r.GetRule(), by, cmp.Or(r.GetRequestedBy(), none),
		}
	})
}

// warnNoReceipts warns on the standard error about a --table without receipts, which may be
// mistyped.
func warnNoReceipts(out *terminal, request *pb.ListReceiptsRequest, answer *pb.ListReceiptsResponse) {
	if request.GetTable() == "" || request.GetPageToken() != "" ||
		len(answer.GetReceipts()) > 0 || answer.GetNextPageToken() != "" {
		return
	}
	hint := "use the table name that `caretaker receipts` prints"
	if _, name, has := strings.Cut(request.GetTable(), "."); has {
		hint = "omit the schema, and use --table " + name
	}
	out.note("no matching receipts for table %s in database %s: %s",
		request.GetTable(), cmp.Or(request.GetDatabase(), mainDatabase), hint)
}

// receiptHeadsCommand prints the sequence and hash of each database's newest receipt, and until
// when it is kept. verify --head reads this output.
func receiptHeadsCommand(a *app) *cobra.Command {
	var database string
	command := &cobra.Command{
		Use:   "head",
		Short: "Print the head of each database: the number and hash of its newest receipt",
		Args:  between(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			heads := []service.ReceiptHead{}
			err := a.eachDatabase(c, database, func(
				ctx context.Context, d *repo.Database, keep time.Duration,
			) error {
				head, err := service.HeadOfReceipts(ctx, d, keep)
				heads = append(heads, head)
				return err
			})
			if err != nil {
				return err
			}
			return a.report(nil, map[string]any{"heads": heads}, func() {
				for _, h := range heads {
					until := ""
					if !h.Until.IsZero() {
						until = " " + h.Until.Format(time.RFC3339)
					}
					a.println("%s %d %s%s", h.Database, h.Sequence, cmp.Or(h.Hash, none), until)
				}
			})
		},
	}
	command.Flags().StringVar(&database, "database", "", "database `name` (default all)")
	return command
}

// verifyReceiptsCommand checks the receipts of each database, and exits with 1 after any finding.
func verifyReceiptsCommand(a *app) *cobra.Command {
	var database, file string
	command := &cobra.Command{
		Use:   "verify",
		Short: "Verify the receipt chain, and exit with 1 if receipts were removed, changed or forged",
		Args:  between(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			known, err := readHeads(a, file)
			if err != nil {
				return err
			}
			checks, wrong := []service.ReceiptCheck{}, false
			err = a.eachDatabase(c, database, func(ctx context.Context, d *repo.Database, _ time.Duration) error {
				check, err := service.VerifyReceipts(ctx, d, known)
				// JSON prints an empty list as a list.
				check.Findings = append([]string{}, check.Findings...)
				check.Unchecked = append([]string{}, check.Unchecked...)
				checks = append(checks, check)
				wrong = wrong || len(check.Findings) > 0
				return err
			})
			if err != nil {
				return err
			}
			err = a.report(nil, map[string]any{"databases": checks},
				func() { describeChecks(a.terminal, checks) })
			if err == nil && wrong {
				return &exitError{code: exitFailed}
			}
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&database, "database", "", "database `name` (default all)")
	flags.StringVar(&file, "head", "", "`file` with stored heads (from caretaker receipts head): "+
		"fail if the receipt of a stored head was rewritten, or removed before it expired")
	return command
}

// describeChecks prints the findings of each database, and a summary with the last receipt.
func describeChecks(out *terminal, checks []service.ReceiptCheck) {
	for _, c := range checks {
		for _, finding := range c.Findings {
			out.println("%s: %s", c.Database, finding)
		}
		if c.MoreFindings > 0 {
			out.println("%s: and %d more", c.Database, c.MoreFindings)
		}
		for _, text := range c.Unchecked {
			out.println("%s: %s", c.Database, text)
		}
		result := "all unchanged"
		if len(c.Findings) > 0 {
			result = "CHANGED OR MISSING"
		}
		pruned := ""
		if c.Pruned > 0 {
			pruned = fmt.Sprintf(" (receipts up to %d have been pruned)", c.Pruned)
		}
		out.println("%s: %s, the newest is %d%s: %s",
			c.Database, format.Pluralize(c.Receipts, "receipt"), c.Sequence, pruned, result)
	}
}

// readHeads reads the output of receipts head from a file, as text or JSON. Each head must belong
// to a configured database.
func readHeads(a *app, file string) (heads []service.ReceiptHead, err error) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, usage(err)
	}
	if strings.HasPrefix(strings.TrimSpace(string(content)), "{") {
		var document struct {
			Heads []service.ReceiptHead `json:"heads"`
		}
		err = json.Unmarshal(content, &document)
		heads = document.Heads
	} else {
		heads, err = parseHeads(string(content))
	}
	if err == nil && len(heads) == 0 {
		err = errors.New("the file contains no heads")
	}
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %w: use a file with the output of `caretaker receipts head`", file, err))
	}
	configuration, err := a.settings()
	for _, h := range heads {
		known := func(d config.Database) bool { return d.Name == h.Database }
		if err == nil && !slices.ContainsFunc(configuration.Databases, known) {
			err = usage(fmt.Errorf("%s: database %q is not in the configuration: set databases.%[2]s.url, "+
				"or remove the heads of this database from the file", file, h.Database))
		}
	}
	return heads, err
}

// parseHeads reads lines of a database, a sequence and a hash, with an optional time in RFC 3339.
// Empty lines are skipped. An error quotes the wrong text.
func parseHeads(content string) (heads []service.ReceiptHead, err error) {
	for line := range strings.Lines(content) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 3 && len(fields) != 4 {
			return nil, fmt.Errorf("%q does not have the form DATABASE NUMBER HASH [TIME]", strings.TrimSpace(line))
		}
		sequence, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a number", fields[1])
		}
		head := service.ReceiptHead{Database: fields[0], Sequence: sequence, Hash: fields[2]}
		if len(fields) == 4 {
			if head.Until, err = time.Parse(time.RFC3339, fields[3]); err != nil {
				return nil, fmt.Errorf("%q is not a time such as 2026-11-01T00:00:00Z", fields[3])
			}
		}
		if head.Hash == none {
			head.Hash = ""
		}
		heads = append(heads, head)
	}
	return heads, nil
}
