package cli

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/caretaker-go/caretaker/internal/format"
)

// The functions of this file check arguments and flags before a command begins, and store them in
// its request. Their errors are usage errors.

// between accepts least to most arguments. Its error names a missing or unexpected argument.
func between(least, most int) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			name := strings.Trim(strings.Fields(command.Use)[len(args)+1], "()")
			return fmt.Errorf("missing argument %s", name)
		case len(args) > most:
			return fmt.Errorf("unexpected argument %q (usage: %s)", args[most], command.UseLine())
		}
		return nil
	}
}

// commandOnly refuses arguments of a command that only groups other commands.
func commandOnly(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(command, args[0])
	}
	return nil
}

// unknownCommand returns an error that suggests the most similar command.
func unknownCommand(parent *cobra.Command, name string) error {
	var names []string
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("unknown command %q%s", name, format.DidYouMean(name, names))
}

// rejectEmpty refuses empty arguments and flags, which most often come from an unset variable. An
// empty name must not select all databases or workers.
func rejectEmpty(command *cobra.Command, args []string) (err error) {
	for i, argument := range args {
		if argument == "" {
			return fmt.Errorf("argument %d must not be empty (usage: %s)", i+1, command.UseLine())
		}
	}
	command.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" {
			err = cmp.Or(err, fmt.Errorf("--%s must not be empty", f.Name))
		}
	})
	return err
}

// howMany counts the flags that are set.
func howMany(flags ...bool) (given int) {
	for _, is := range flags {
		if is {
			given++
		}
	}
	return given
}

// flagError reports the accepted values of a flag instead of the function that parses it.
func flagError(command *cobra.Command, err error) error {
	if given := command.Flags().Args(); len(given) > 0 && command.HasSubCommands() {
		return unknownCommand(command, given[0])
	}
	id := regexp.MustCompile(`^unknown shorthand flag: .* in (-\d+)$`).FindStringSubmatch(err.Error())
	if id != nil && strings.Contains(command.Use, "ID") {
		return fmt.Errorf("%q is not an ID: use a number above 0", id[1])
	}
	if strings.HasPrefix(err.Error(), "unknown shorthand flag") {
		return fmt.Errorf("%w (arguments that start with - are read as flags)", err)
	}
	if name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --"); unknown {
		return fmt.Errorf("%w%s", err, nearFlag(command, name))
	}
	invalid, isValue := errors.AsType[*pflag.InvalidValueError](err)
	if !isValue {
		return err
	}
	switch flag := invalid.GetFlag(); {
	case errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("--%s: %s is too large", flag.Name, invalid.GetValue())
	case flag.Value.Type() == "bool":
		return fmt.Errorf("--%s: %q is neither true nor false", flag.Name, invalid.GetValue())
	case flag.Value.Type() == "duration":
		return fmt.Errorf("--%s: %q is not a duration such as 2s or 5m", flag.Name, invalid.GetValue())
	case errors.Is(err, strconv.ErrSyntax):
		return fmt.Errorf("--%s: %q is not a whole number", flag.Name, invalid.GetValue())
	}
	return err
}

// nearFlag asks whether the most similar flag was meant. It returns "" if no flag is similar.
func nearFlag(command *cobra.Command, name string) string {
	var names []string
	command.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return strings.Replace(format.DidYouMean(name, names), "mean ", "mean --", 1)
}

// kindArgument refuses a kind that is not one of kinds.
func kindArgument(given string, kinds ...string) error {
	if slices.Contains(kinds, given) {
		return nil
	}
	last := len(kinds) - 1
	return fmt.Errorf("unknown kind %q: use %s or %s%s", given, strings.Join(kinds[:last], ", "), kinds[last],
		format.DidYouMean(given, kinds))
}

// optionalWorker accepts at most one worker's name, which a flag may already have set.
func optionalWorker(worker *string) cobra.PositionalArgs {
	return cobra.MatchAll(between(0, 1), func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		if *worker != "" && *worker != args[0] {
			return errors.New("the argument WORKER and the flag --worker differ: use only one of them")
		}
		*worker = args[0]
		return nil
	})
}

// workerFlag lets a list select one worker by an argument or by the flag --worker.
func workerFlag(command *cobra.Command, worker *string) {
	command.Args = optionalWorker(worker)
	command.Flags().StringVar(worker, "worker", "", "worker `name`, same as the argument WORKER (default all)")
}

// everyWorker selects all workers.
const everyWorker = "*"

// workerOrAll makes a command take one worker's name, or the flag --all with the given help.
func workerOrAll(command *cobra.Command, worker *string, help string) {
	all := false
	command.Flags().BoolVar(&all, "all", false, help)
	command.Args = func(_ *cobra.Command, args []string) error {
		if all == (len(args) == 1) || len(args) > 1 {
			return errors.New("specify one WORKER or --all")
		}
		*worker = strings.Join(append(args, everyWorker)[:1], "")
		return nil
	}
}

// runArgument accepts the ID of a run, or the beginning of one, which the server completes.
func runArgument(id *string) cobra.PositionalArgs {
	form := regexp.MustCompile(`^[0-9a-fA-F-]{4,36}$`)
	return cobra.MatchAll(between(1, 1), func(_ *cobra.Command, args []string) error {
		if !form.MatchString(args[0]) {
			return fmt.Errorf("%q is neither a run ID nor the first 4 or more characters of a run ID: run "+
				"`caretaker runs` to list the IDs", args[0])
		}
		*id = args[0]
		return nil
	})
}

// jobArgument accepts the ID of a job.
func jobArgument(id *int64) cobra.PositionalArgs {
	return cobra.MatchAll(between(1, 1), func(_ *cobra.Command, args []string) error {
		return parseID(args[0], "job: run `caretaker jobs` to list the IDs", id)
	})
}

// targetArguments accepts the kind and ID of a target that can be planned or protected.
func targetArguments(kind *string, id *int64, kinds ...string) cobra.PositionalArgs {
	return cobra.MatchAll(between(2, 2), func(_ *cobra.Command, args []string) error {
		*kind = args[0]
		return cmp.Or(kindArgument(args[0], kinds...), parseID(args[1], args[0]+": use a number above 0", id))
	})
}

// parseID parses a positive ID.
func parseID(text, of string, to *int64) (err error) {
	*to, err = strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) && *to > 0 {
		return fmt.Errorf("%s is too large for an ID", text)
	}
	if err != nil || *to < 1 {
		return fmt.Errorf("%q is not the ID of a %s", text, of)
	}
	return nil
}

// reasonFlag adds the required flag --reason.
func reasonFlag(command *cobra.Command, reason *string, help string) {
	command.Flags().StringVar(reason, "reason", "", help)
	command.Args = cobra.MatchAll(command.Args, func(*cobra.Command, []string) error {
		if *reason == "" {
			return errors.New("--reason REASON is required: specify the " + help)
		}
		return nil
	})
}

// defaultLimit is how many entries a list shows. maxPageSize is the limit of the API.
const defaultLimit, maxPageSize = 20, 1000

// count is the value of --limit. 0 means no limit.
type count int

// String returns the value as the flag's help shows it.
func (c *count) String() string { return strconv.Itoa(int(*c)) }

// Type implements [pflag.Value]. It is the type for which GetInt returns a value.
func (*count) Type() string { return "int" }

// Set implements [pflag.Value].
func (c *count) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		return errors.New("must be a whole number above 0")
	}
	*c = count(n)
	return nil
}

// moreKey is the annotation of a list command that names its next page.
const moreKey = "more"

// pageFlags adds the flags of a paged list. more names its next page.
func pageFlags(command *cobra.Command, more string, token *string) {
	command.Annotations = map[string]string{moreKey: more}
	limit, flags := count(defaultLimit), command.Flags()
	flags.Var(&limit, "limit", "maximum `number` of entries")
	if flags.Lookup("all") == nil {
		flags.BoolFunc("all", "show all entries", func(string) error {
			limit = 0
			return nil
		})
		command.Args = cobra.MatchAll(command.Args, func(*cobra.Command, []string) error {
			if flags.Changed("all") && (flags.Changed("limit") || flags.Changed("page-size")) {
				return errors.New("use --limit or --all, not both")
			}
			return nil
		})
	}
	flags.Var(&limit, "page-size", "same as --limit")
	_ = flags.MarkHidden("page-size")
	flags.StringVar(token, "page-token", "", "`token` for the next page, from --output json (for scripts)")
}

// watchFlag adds --watch and --watch=INTERVAL. In `--watch 5s`, 5s is an argument.
func watchFlag(command *cobra.Command) {
	accepts := command.Args
	command.Args = func(c *cobra.Command, args []string) error {
		for _, arg := range args {
			if _, err := format.ParseDuration(arg); err == nil && c.Flags().Changed("watch") {
				return fmt.Errorf("unexpected argument %q (did you mean --watch=%[1]s?)", arg)
			}
		}
		if interval, _ := c.Flags().GetDuration("watch"); interval <= 0 && c.Flags().Changed("watch") {
			return fmt.Errorf("--watch: %s is not above 0: use an interval such as 2s", interval)
		}
		return accepts(c, args)
	}
	command.Flags().Duration("watch", 0, "repeat at this interval until you press Ctrl-C")
	command.Flags().Lookup("watch").NoOptDefVal = "2s"
}

// enumFlag adds a flag whose values are those of an API enum, without the prefix and in any case.
// Without the flag the enum stays UNSPECIFIED, which means all.
func enumFlag[E interface {
	~int32
	protoreflect.Enum
}](command *cobra.Command, name, prefix string, to *E,
) {
	values := (*to).Descriptor().Values()
	var names []string
	for i := 1; i < values.Len(); i++ {
		names = append(names, strings.ToLower(strings.TrimPrefix(string(values.Get(i).Name()), prefix)))
	}
	last := len(names) - 1
	allowed := strings.Join(names[:last], ", ") + " or " + names[last]
	help := "only this `" + name + "`: " + allowed + " (default all)"
	command.Flags().Func(name, help, func(text string) error {
		for i, value := range names {
			if strings.EqualFold(value, text) {
				*to = E(values.Get(i + 1).Number())
				return nil
			}
		}
		return errors.New("must be " + allowed + format.DidYouMean(text, names))
	})
	_ = command.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// durationFlag adds a flag for a positive duration.
func durationFlag(command *cobra.Command, name, help string, to **durationpb.Duration) {
	command.Flags().Func(name, help, func(text string) error {
		d, err := format.ParseDuration(text)
		if err != nil || d <= 0 {
			return fmt.Errorf("%q is not a positive duration of at most 290 years, such as 30m or 8h", text)
		}
		*to = durationpb.New(d)
		return nil
	})
}

// sinceFlag adds --since.
func sinceFlag(command *cobra.Command, to **timestamppb.Timestamp) {
	timeFlag(command, "since", "only entries since this `time`, such as 2026-11-01T00:00:00Z, or 24h "+
		"for the last 24 hours", to)
}

// timesFlags adds --since and --until.
func timesFlags(command *cobra.Command, since, until **timestamppb.Timestamp) {
	sinceFlag(command, since)
	timeFlag(command, "until", "only entries before this `time`, in the same format as --since", until)
}

// timeFlag adds a flag for a time, as [format.ParseTime] reads it.
func timeFlag(command *cobra.Command, name, help string, to **timestamppb.Timestamp) {
	command.Flags().Func(name, help, func(text string) error {
		at, err := format.ParseTime(text)
		if err != nil {
			return err
		}
		*to = timestamppb.New(at)
		return nil
	})
}
